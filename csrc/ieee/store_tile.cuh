// Stores tiles whose sums lie in shared memory.
#pragma once
#include "../epilogue/epilogue.cuh"
#include "../gpu/cluster.cuh"
#include "../epilogue/in_order.cuh"
#include "../problem/problem.h"

namespace sgemm::ieee {

// Stores the tile at (m0, n0), whose sum at (row, col) is `total(row, col)`. `blocks` blocks share the elements, and
// this block stores the share of `rank`. `sliced`: the entries of d's batch are slices of k; sums that are not finite
// are then recomputed after the slices are added up. All THREADS threads of the block must call.
template <int ROWS, int COLS, int THREADS, class Total>
__device__ __forceinline__ void store_tile(const Problem& p, bool sliced, int64_t entry, int64_t m0, int64_t n0,
                                           uint32_t rank, uint32_t blocks, const Total& total) {
  const Matrix d = p.d.matrix(entry);
  const ConstMatrix c = p.c.matrix(entry);
  const bool by_rows = d.row == 1;  // neighbouring threads store neighbouring elements
  for (int x = rank * THREADS + threadIdx.x; x < ROWS * COLS; x += blocks * THREADS) {
    const int row = by_rows ? x % ROWS : x / COLS, col = by_rows ? x / ROWS : x % COLS;
    const int64_t i = m0 + row, j = n0 + col;
    if (!d.contains(i, j)) continue;
    float sum = total(row, col);
    if (!sliced && !is_finite(sum)) sum = in_order(p, entry, i, j);
    *d.at(i, j) = finished(p, p.alpha * sum, c.at(i, j));
  }
}

// The same for a tile whose k is shared by a cluster's blocks: each block has its part of a sum at `place(row, col)`.
// Parts are added in the order of the ranks.
template <int ROWS, int COLS, int THREADS, class Place>
__device__ __forceinline__ void store_cluster_tile(const Problem& p, bool sliced, int64_t entry, int64_t m0, int64_t n0,
                                                   uint32_t rank, uint32_t blocks, const Place& place) {
  cluster::sync(blocks);
  store_tile<ROWS, COLS, THREADS>(p, sliced, entry, m0, n0, rank, blocks,
                                  [&](int row, int col) { return cluster::sum(place(row, col), blocks); });
  cluster::sync(blocks);  // other blocks may still be reading this block's parts
}

}  // namespace sgemm::ieee
