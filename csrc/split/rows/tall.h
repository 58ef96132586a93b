// The family's row for products with many rows, of few columns and a short k: how they are cut up. Pure host code.
#pragma once
#include "../../problem/pieces.h"
#include "../bound.h"

namespace sgemm::split {

// A warp computes 16 rows at a time, all of their k, in 16 columns after the other.
struct TallTile {
  int depth;  // of k, at most
  int warps;  // that an SM has registers for; a block has all of them, or four

  static constexpr int kRows = 16, kCols = 16, kStep = 16;  // what is multiplied at a time
  static constexpr int kShortSteps = 2;                     // sums of so many are multiplied by lo * lo too
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

  // Each piece adds its corrections, one rounding more.
  static double error_bound(int64_t k) {
    return Bound<Fp16x3>::of(k, kWindow) + static_cast<double>(ceil_div(k, kLargest.depth));
  }
};

// How A's rows are read: 16 bytes along k, two rows side by side, or one by one. And how D is written: 16 bytes along
// n; two rows side by side; by way of shared memory, a tile whose rows follow each other, or columns of 16 rows; one by
// one.
enum class TallReads : uint8_t { kQuads, kPairs, kSingles };
enum class TallStores : uint8_t { kQuads, kPairs, kTiles, kColumns, kSingles };
constexpr bool is_staged(TallStores stores) { return stores == TallStores::kTiles || stores == TallStores::kColumns; }

// How a piece is cut up.
struct TallPiece {
  uint8_t tile;  // of kTallTiles
  bool swapped;  // the transposed product, D^T = B^T A^T
  TallReads reads;
  TallStores stores;
  int cols;        // of a panel of B, in whole groups of 16
  int warps;       // of a block
  int groups;      // blocks that share the rows of one panel
  double seconds;  // predicted
};
TallPiece tall_piece(const Problem& p, const Device& device);  // the fastest way, as predicted

// The last piece of k may be shorter, and have another tile. Parts at D's edges, which a small workspace makes, are
// planned as they come.
struct TallPlan {
  Pieces pieces;
  TallPiece piece, last;
};

// A tile of which something has to be redone: groups of its columns, a bit each, and single elements of other groups.
struct alignas(16) TallEntry {
  static constexpr uint32_t kMostElements = 24, kColumnBits = 10;

  uint64_t groups;
  uint32_t tile;
  uint32_t count;                    // of elements
  uint16_t elements[kMostElements];  // row in the tile and the place of its column's word, of each
};
static_assert(sizeof(TallEntry) == 64);

// The kernels' parameters.
struct TallJob {
  Problem p;
  uint32_t tiles_m, tiles_n;
  uint32_t groups;  // blocks that share the rows of one panel of B
  int cols;         // of a panel
  bool plain;       // no alpha of extreme size
  bool more;        // C is added, or there is an activation
  TallStores stores;
  TallEntry* lists;  // for each warp, its tiles that wait to be redone
};

// Bytes of those lists: an entry for each panel's tiles. What lies behind them is aligned.
size_t tall_list_bytes(const Problem& p);

// A panel's shared memory, 16-bit planes in the order in which lanes read them and two words a column; and a warp's,
// for its tile of D, if it goes there.
constexpr int tall_panel_bytes(int tile, int cols) { return cols * (kTallTiles[tile].depth + 2) * 4; }
constexpr int tall_staged_bytes(int cols) { return TallTile::kRows * cols * 4; }
constexpr int tall_cols(int tile) { return 128 * 128 / kTallTiles[tile].depth / 16 * 16; }  // of a panel, at most
inline constexpr int kTallMostBytes = 222 * 1024;                                           // of an SM

}  // namespace sgemm::split
