// The shared-memory tile with its inner loop unrolled.
//
// Idea:   the trip count is known at compile time. A step then needs no counter, compare or branch, addresses are
//         folded into the loads, and one 16-byte load reads four neighbouring elements of A's tile.
// Bound:  shared-memory loads of B's tile: one for each multiply-add.
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::unrolled_tile {

template <int BLOCK>
struct Rung {
  static constexpr const char* kIdea = "the inner loop unrolled";
  static constexpr const char* kSource = "ladder/05_unrolled_tile.cuh";
  static constexpr int BM = BLOCK, BN = BLOCK, BK = BLOCK, TM = 1, TN = 1;
  static constexpr int kThreads = BLOCK * BLOCK;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static_assert(kThreads <= 1024, "a block has at most 1024 threads");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) kernel(Problem p) {
  __shared__ float as[T::BM][T::BK];  // (BM,BK)
  __shared__ float bs[T::BK][T::BN];  // (BK,BN)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const ConstMatrix a = p.a.matrix(tile.batch), b = p.b.matrix(tile.batch);
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t i = tile.row + y, j = tile.col + x;

  float acc = 0;
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
    as[y][x] = a.load(i, k0 + x);
    bs[y][x] = b.load(k0 + y, j);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < T::BK; ++q) acc += as[y][q] * bs[q][x];
    __syncthreads();
  }
  store(p, tile, i, j, acc);
}

template <int BLOCK>
void Rung<BLOCK>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(BLOCK, BLOCK), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::unrolled_tile
