// The tiles of split_fp16x3_tall, and its kernels' parameters.
#pragma once
#include "../../problem/problem.h"

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
inline constexpr int kMostTallDepth = kTallTiles[kTallCount - 1].depth;

// TallReads: A is read 16 bytes along k, two neighbouring rows at once, or one by one. TallStores: D is written 16
// bytes along n, two neighbouring rows at once, or one by one. Two ways go through shared memory: kTiles is a tile of
// contiguous rows, kColumns columns of 16 rows.
enum class TallReads : uint8_t { kQuads, kPairs, kSingles };
enum class TallStores : uint8_t { kQuads, kPairs, kTiles, kColumns, kSingles };
constexpr bool is_staged(TallStores stores) { return stores == TallStores::kTiles || stores == TallStores::kColumns; }

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

// Shared memory of a panel, bytes: 16-bit planes in the order in which lanes read them, and two uint32 per column.
// Shared memory of a warp, bytes: its tile of D, if that is staged.
constexpr int tall_panel_bytes(int tile, int cols) { return cols * (kTallTiles[tile].depth + 2) * 4; }
constexpr int tall_staged_bytes(int cols) { return TallTile::kRows * cols * 4; }
constexpr int tall_cols(int tile) { return 128 * 128 / kTallTiles[tile].depth / 16 * 16; }  // most columns of a panel
inline constexpr int kTallMostBytes = 222 * 1024;                                           // shared memory of an SM

}  // namespace sgemm::split
