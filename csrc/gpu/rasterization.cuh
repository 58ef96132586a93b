// The order of tiles, for kernels whose blocks take one after the other.
#pragma once
#include <cstdint>

namespace sgemm {

struct TileIndex {
  int batch, row, col;
};

constexpr int kTilesTogether = 8;  // the `group` of kernels that have no number of their own

// Neighbours share panels, which stay in the L2 cache meanwhile: `group` rows of tiles are walked together, column by
// column.
__device__ __forceinline__ TileIndex tile_at(int t, int tiles_m, int tiles_n, int group) {
  const int of_matrix = tiles_m * tiles_n;
  const int in_matrix = t % of_matrix, of_group = group * tiles_n;
  const int first = in_matrix / of_group * group, height = min(tiles_m - first, group);
  const int in_group = in_matrix % of_group;
  return {t / of_matrix, first + in_group % height, in_group / height};
}

}  // namespace sgemm
