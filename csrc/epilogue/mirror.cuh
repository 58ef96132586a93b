// Copies D's upper triangle to its lower one, after a product of a matrix with its transpose.
//
// Idea:   a block copies a tile on or above the diagonal to below it through shared memory, so that both are read and
//         written along D's rows. All reads of a thread are in flight at once.
// Bound:  memory: 4 bytes per element of D; latency for small matrices.
#pragma once
#include "../gpu/dependent_launch.cuh"
#include "../gpu/launch_cluster.cuh"
#include "../gpu/rasterization.cuh"

namespace sgemm {

constexpr int kMirrorTile = 32, kMirrorRows = 8;

static __global__ void __launch_bounds__(kMirrorTile* kMirrorRows) mirror_upper(const __grid_constant__ Problem p) {
  __shared__ float shared[kMirrorTile][kMirrorTile + 1];
  const int tiles = static_cast<int>(ceil_div(p.n, kMirrorTile));
  const TileIndex tile = upper_tile_at(static_cast<int>(blockIdx.x), tiles, kTilesTogether);
  const Matrix d = p.d.matrix(tile.batch);
  const int64_t row0 = int64_t{tile.row} * kMirrorTile, col0 = int64_t{tile.col} * kMirrorTile;
  const bool down = d.row == 1;  // neighbours of a column are contiguous
  const int along = threadIdx.x % kMirrorTile, across = threadIdx.x / kMirrorTile;
  wait_for_predecessor();
  float x[kMirrorTile / kMirrorRows];
#pragma unroll
  for (int s = 0; s < kMirrorTile / kMirrorRows; ++s) {
    const int other = across + s * kMirrorRows, i = down ? along : other, j = down ? other : along;
    x[s] = d.load(row0 + i, col0 + j);
  }
#pragma unroll
  for (int s = 0; s < kMirrorTile / kMirrorRows; ++s) {
    const int other = across + s * kMirrorRows;
    shared[other][along] = x[s];
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kMirrorTile / kMirrorRows; ++s) {
    // Reads the tile transposed: if j followed the threads during the write, i does now, and vice versa.
    const int other = across + s * kMirrorRows, i = down ? other : along, j = down ? along : other;
    const int64_t row = row0 + i, col = col0 + j;
    if (row < col && d.contains(row, col)) *d.at(col, row) = shared[along][other];
  }
}

inline void launch_mirror(const Problem& p, const Context& context) {
  const int64_t tiles = ceil_div(p.n, kMirrorTile);
  launch(mirror_upper, upper_tiles(tiles) * p.batch, kMirrorTile * kMirrorRows, 0, 0, true, context.stream, p);
}

}  // namespace sgemm
