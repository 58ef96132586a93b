// Several elements of C per thread, spread over the tile: fewer threads, each with independent sums.
//
// Idea:   an element loaded from shared memory serves several multiply-adds: TM of them share one of B, TN share one of
//         A. The independent sums hide each other's latency. A thread's elements are a block's width apart, so that a
//         warp still accesses neighbouring addresses.
// Bound:  shared-memory loads, until too few threads are left to hide latency.
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::many_outputs {

template <int BM_, int BN_, int BK_, int TM_, int TN_, int UNROLL>
struct Rung {
  static constexpr const char* kIdea = "several elements per thread, a block apart";
  static constexpr const char* kSource = "ladder/06_many_outputs.cuh";
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, kUnroll = UNROLL;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static_assert(BM % TM == 0 && BN % TN == 0, "the threads' elements fill the tile");
  static_assert(BM % Y == 0 && BK % Y == 0 && BK % X == 0, "the threads copy whole tiles");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) kernel(Problem p) {
  __shared__ float as[T::BM][T::BK];  // (BM,BK)
  __shared__ float bs[T::BK][T::BN];  // (BK,BN)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const ConstMatrix a = p.a.matrix(tile.batch), b = p.b.matrix(tile.batch);
  const int x = threadIdx.x, y = threadIdx.y;

  float acc[T::TM][T::TN] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
#pragma unroll
    for (int r = 0; r < T::BM; r += T::Y)
      for (int q = 0; q < T::BK; q += T::X) as[y + r][x + q] = a.load(tile.row + y + r, k0 + x + q);
#pragma unroll
    for (int q = 0; q < T::BK; q += T::Y)
      for (int s = 0; s < T::BN; s += T::X) bs[y + q][x + s] = b.load(k0 + y + q, tile.col + x + s);
    __syncthreads();
#pragma unroll(T::kUnroll)
    for (int q = 0; q < T::BK; ++q)
      for (int r = 0; r < T::TM; ++r)
        for (int s = 0; s < T::TN; ++s) acc[r][s] += as[y + r * T::Y][q] * bs[q][x + s * T::X];
    __syncthreads();
  }
  for (int r = 0; r < T::TM; ++r)
    for (int s = 0; s < T::TN; ++s) store(p, tile, tile.row + y + r * T::Y, tile.col + x + s * T::X, acc[r][s]);
}

template <int BM, int BN, int BK, int TM, int TN, int UNROLL>
void Rung<BM, BN, BK, TM, TN, UNROLL>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(X, Y), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::many_outputs
