// D's lower triangle from its upper one, behind a product of a matrix with its transpose.
//
// Idea:   a block copies a tile above the diagonal to below it, through shared memory, so that both sides are read and
//         written along D's rows.
// Bound:  memory: 4 bytes per element of D.
#pragma once
#include "../gpu/dependent_launch.cuh"
#include "../gpu/launch_cluster.cuh"

namespace sgemm {

constexpr int kMirrorTile = 64, kMirrorRows = 4;

static __global__ void __launch_bounds__(kMirrorTile* kMirrorRows) mirror_upper(const __grid_constant__ Problem p) {
  __shared__ float tile[kMirrorTile][kMirrorTile + 1];
  const uint32_t tiles = static_cast<uint32_t>(ceil_div(p.n, kMirrorTile)), of_matrix = blockIdx.x % (tiles * tiles);
  const int64_t i0 = of_matrix / tiles * kMirrorTile, j0 = of_matrix % tiles * kMirrorTile;
  if (j0 < i0) return;
  const Matrix d = p.d.matrix(blockIdx.x / (tiles * tiles));
  const bool down = d.row == 1;  // neighbours of a column lie side by side
  const int t = threadIdx.x % kMirrorTile;
  wait_for_predecessor();
#pragma unroll 4
  for (int s = threadIdx.x / kMirrorTile; s < kMirrorTile; s += kMirrorRows) {
    const int i = down ? t : s, j = down ? s : t;
    if (d.contains(i0 + i, j0 + j)) tile[i][j] = *d.at(i0 + i, j0 + j);
  }
  __syncthreads();
#pragma unroll 4
  for (int s = threadIdx.x / kMirrorTile; s < kMirrorTile; s += kMirrorRows) {
    const int i = down ? s : t, j = down ? t : s;
    if (i0 + i < j0 + j && d.contains(i0 + i, j0 + j)) *d.at(j0 + j, i0 + i) = tile[i][j];
  }
}

inline void launch_mirror(const Problem& p, const Context& context) {
  const int64_t tiles = ceil_div(p.n, kMirrorTile);
  launch(mirror_upper, tiles * tiles * p.batch, kMirrorTile * kMirrorRows, 0, 0, true, context.stream, p);
}

}  // namespace sgemm
