// Copies an operand that a kernel can't read directly to a row-major one whose rows are whole float4s, filled with
// zeros.
//
// A 32 x 32 tile goes through shared memory, so that both sides are coalesced whichever way the source runs; the
// padding column keeps the transposed reads free of bank conflicts. Bound by memory: 8 bytes an element.
#pragma once
#include "launch.h"

namespace sgemm::SGEMM_BACKEND {

constexpr int kPackTile = 32, kPackRows = 8;  // tile, and rows of it that the threads copy at a time

// TRANSPOSED: the source's neighbours in memory lie along its columns.
template <bool TRANSPOSED>
__global__ void __launch_bounds__(kPackTile* kPackRows) pack_rows(ConstMatrix source, Matrix target) {
  __shared__ float buffer[kPackTile][kPackTile + 1];  // (rows,cols)
  const Tile tile = block_tile(target, kPackTile, kPackTile);
  const ConstMatrix from = source.matrix(tile.batch);
  const Matrix to = target.matrix(tile.batch);
  const int x = threadIdx.x;
  for (int y = threadIdx.y; y < kPackTile; y += kPackRows) {
    const int i = TRANSPOSED ? x : y, j = TRANSPOSED ? y : x;
    buffer[i][j] = from.load(tile.row + i, tile.col + j);
  }
  __syncthreads();
  for (int y = threadIdx.y; y < kPackTile; y += kPackRows)
    if (to.contains(tile.row + y, tile.col + x)) *to.at(tile.row + y, tile.col + x) = buffer[y][x];
}

inline void pack(const ConstMatrix& source, const Matrix& target, int64_t batch, Stream stream) {
  const unsigned blocks =
      static_cast<unsigned>(ceil_div(target.rows, kPackTile) * ceil_div(target.cols, kPackTile) * batch);
  const auto kernel = source.row < source.col ? pack_rows<true> : pack_rows<false>;
  launch_blocks(kernel, blocks, dim3(kPackTile, kPackRows), stream, source, target);
}

}  // namespace sgemm::SGEMM_BACKEND
