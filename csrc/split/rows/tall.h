// The split family's row of the table for products with many rows, few columns and a short k. Pure host code.
#pragma once
#include "../../problem/pieces.h"
#include "../bound.h"

namespace sgemm::split {

// A warp computes 16 rows at a time, over all of k, in a loop over groups of 16 columns.
struct TallTile {
  int depth;  // largest k
  int warps;  // warps that an SM has registers for; a block has all of them, or four

  static constexpr int kRows = 16, kCols = 16, kStep = 16;  // shape of one product
  static constexpr int kShortSteps = 2;                     // sums of no more steps include lo * lo
  constexpr int steps() const { return depth / kStep; }
};
inline constexpr TallTile kTallTiles[] = {{16, 20}, {32, 16}, {48, 12}, {64, 12}, {96, 8}, {128, 8}};
inline constexpr int kTallCount = sizeof kTallTiles / sizeof kTallTiles[0];

struct TallProduct {
  static constexpr TallTile kLargest = kTallTiles[kTallCount - 1];
  static constexpr const char* kSource = "split/launch/tall_sm90a.cu";
  static constexpr int kThreads = 32 * kLargest.warps;
  static constexpr int BM = TallTile::kRows * kLargest.warps, BN = TallTile::kCols, BK = TallTile::kStep, TM = 2,
                       TN = 4;
  static constexpr bool kActivates = true, kTakesPlanes = false;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;
  static constexpr int64_t kAutoFrom = 0;

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_SM90A is defined

  // Each piece adds its corrections separately: one more rounding.
  static double error_bound(int64_t k) {
    return Bound<Fp16x3>::of(k, kWindow) + static_cast<double>(ceil_div(k, kLargest.depth));
  }
};

// TallReads: A is read 16 bytes along k, two neighbouring rows at once, or one by one. TallStores: D is written 16
// bytes along n, two neighbouring rows at once, or one by one. Two ways go through shared memory: kTiles is a tile of
// contiguous rows, kColumns columns of 16 rows.
enum class TallReads : uint8_t { kQuads, kPairs, kSingles };
enum class TallStores : uint8_t { kQuads, kPairs, kTiles, kColumns, kSingles };
constexpr bool is_staged(TallStores stores) { return stores == TallStores::kTiles || stores == TallStores::kColumns; }

// The plan of a piece.
struct TallPiece {
  uint8_t tile;  // index in kTallTiles
  bool swapped;  // solves the transposed product, D^T = B^T A^T
  TallReads reads;
  TallStores stores;
  int cols;        // columns of a panel of B, in whole groups of 16
  int warps;       // warps of a block
  int groups;      // blocks that share the rows of one panel
  double seconds;  // predicted time
};
TallPiece tall_piece(const Problem& p, const Device& device);  // the plan that is predicted to be fastest

// The last piece of k may be shorter, and have another tile. Parts at D's edges, which a small workspace makes, are
// planned at their launch.
struct TallPlan {
  Pieces pieces;
  TallPiece piece, last;
};

// A tile with refused elements: groups of columns to redo, a bit each, and single elements of other groups.
struct alignas(16) TallEntry {
  static constexpr uint32_t kMostElements = 24, kColumnBits = 10;

  uint64_t groups;
  uint32_t tile;
  uint32_t count;                    // number of elements
  uint16_t elements[kMostElements];  // of each, the row in the tile and the place of its column's scale
};
static_assert(sizeof(TallEntry) == 64);

// The kernels' parameters.
struct TallJob {
  Problem p;
  uint32_t tiles_m, tiles_n;
  uint32_t groups;  // blocks that share the rows of one panel of B
  int cols;         // columns of a panel
  bool plain;       // alpha has no extreme size
  bool more;        // C is added, or there is an activation
  TallStores stores;
  TallEntry* lists;  // for each warp, its tiles with refused elements
};

// Returns the bytes of those lists, an entry for each tile of each panel, rounded up to align the buffer after them.
size_t tall_list_bytes(const Problem& p);

// Shared memory of a panel, bytes: 16-bit planes in the order in which lanes read them, and two uint32 per column.
// Shared memory of a warp, bytes: its tile of D, if that is staged.
constexpr int tall_panel_bytes(int tile, int cols) { return cols * (kTallTiles[tile].depth + 2) * 4; }
constexpr int tall_staged_bytes(int cols) { return TallTile::kRows * cols * 4; }
constexpr int tall_cols(int tile) { return 128 * 128 / kTallTiles[tile].depth / 16 * 16; }  // most columns of a panel
inline constexpr int kTallMostBytes = 222 * 1024;                                           // shared memory of an SM

}  // namespace sgemm::split
