// Copies an operand that a kernel can't read directly to a row-major float32 matrix. Its rows are whole float4s, padded
// with zeros.
//
// A 32 x 32 tile goes through shared memory, so that both sides are coalesced for any direction of the source. The
// padding column avoids bank conflicts of the transposed reads. Bound by memory: 8 bytes per element, or 6 from 16
// bits.
#pragma once
#include "../problem/elements.h"
#include "dependent_launch.cuh"
#include "launch.h"

namespace sgemm::SGEMM_BACKEND {

constexpr int kPackTile = 32, kPackRows = 8;  // tile, and rows of it that the threads copy at a time

// TRANSPOSED: the source is contiguous along its columns.
template <bool TRANSPOSED, class T>
__global__ void __launch_bounds__(kPackTile* kPackRows) pack_rows(MatrixView<T> source, Matrix target) {
  __shared__ float buffer[kPackTile][kPackTile + 1];  // (rows,cols)
  const Tile tile = block_tile(target, kPackTile, kPackTile);
  const MatrixView<T> from = source.matrix(tile.batch);
  const Matrix to = target.matrix(tile.batch);
  constexpr int kEach = kPackTile / kPackRows;
  const int x = threadIdx.x;
  float value[kEach];  // all reads precede the first store
  wait_for_predecessor();
  launch_dependents();
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int y = threadIdx.y + n * kPackRows;
    value[n] = TRANSPOSED ? from.load(tile.row + x, tile.col + y) : from.load(tile.row + y, tile.col + x);
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int y = threadIdx.y + n * kPackRows;
    (TRANSPOSED ? buffer[x][y] : buffer[y][x]) = value[n];
  }
  __syncthreads();
  for (int y = threadIdx.y; y < kPackTile; y += kPackRows)
    if (to.contains(tile.row + y, tile.col + x)) *to.at(tile.row + y, tile.col + x) = buffer[y][x];
}

template <class T>
void pack_elements(const MatrixView<T>& source, const Matrix& target, int64_t batch, const Context& context) {
  const int64_t blocks = ceil_div(target.rows, kPackTile) * ceil_div(target.cols, kPackTile) * batch;
  const auto kernel = source.row < source.col ? pack_rows<true, T> : pack_rows<false, T>;
  launch_overlapping(kernel, blocks, dim3(kPackTile, kPackRows), context, source, target);
}

inline void pack(const ConstMatrix& source, ElementType elements, const Matrix& target, int64_t batch,
                 const Context& context) {
  with_elements(source, elements, [&](const auto& typed) { pack_elements(typed, target, batch, context); });
}

}  // namespace sgemm::SGEMM_BACKEND
