// Rasterization: the order of tiles in persistent kernels.
#pragma once
#include <cstdint>

namespace sgemm {

struct TileIndex {
  int batch, row, col;
};

constexpr int kTilesTogether = 8;  // the default `group` of kernels

// Walks `group` rows of tiles together, column by column. Neighbouring tiles share panels, which stay in the L2 cache
// meanwhile.
__device__ __forceinline__ TileIndex tile_at(int t, int tiles_m, int tiles_n, int group) {
  const int of_matrix = tiles_m * tiles_n;
  const int in_matrix = t % of_matrix, of_group = group * tiles_n;
  const int first = in_matrix / of_group * group, height = min(tiles_m - first, group);
  const int in_group = in_matrix % of_group;
  return {t / of_matrix, first + in_group % height, in_group / height};
}

// The same for the tiles on and above the diagonal of a square of `tiles`. The last rows are appended to the first
// ones, which makes a rectangle.
__device__ __forceinline__ TileIndex upper_tile_at(int t, int tiles, int group) {
  const int even = tiles % 2 == 0;
  const TileIndex at = tile_at(t, (tiles + 1) / 2, tiles + even, group);
  const int col = at.col - even;
  if (col >= at.row) return {at.batch, at.row, col};
  return {at.batch, tiles - even - at.row, tiles - 1 - at.col};
}

}  // namespace sgemm
