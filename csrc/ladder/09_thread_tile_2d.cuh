// Each thread computes a TM x TN tile of C.
//
// Idea:   TM + TN elements loaded into registers serve TM * TN multiply-adds: 16 loads for 64 with an 8 x 8 tile. This
//         is the first rung with more arithmetic than loads.
// Bound:  the loads into the tiles, one element at a time and between two barriers.
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::thread_tile_2d {

template <int BM_, int BN_, int BK_, int TM_, int TN_>
struct Rung {
  static constexpr const char* kIdea = "a two-dimensional tile of C a thread";
  static constexpr const char* kSource = "ladder/09_thread_tile_2d.cuh";
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y;
  static constexpr int kBlocks = kThreads == 256 ? 2 : 1;  // per SM: 128 registers per thread at most
  static constexpr Reads kReads = Reads::kAnyStrides;
  static_assert(BM % TM == 0 && BN % TN == 0, "the threads' elements fill the tile");
  static_assert(BM * BK % kThreads == 0 && BK * BN % kThreads == 0, "the threads copy whole tiles");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) kernel(Problem p) {
  __shared__ float as[T::BM][T::BK];  // (BM,BK)
  __shared__ float bs[T::BK][T::BN];  // (BK,BN)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const ConstMatrix a = p.a.matrix(tile.batch), b = p.b.matrix(tile.batch);
  const int t = threadIdx.x;
  const int row = t / T::X * T::TM, col = t % T::X * T::TN;  // the thread's first element in the tile

  float acc[T::TM][T::TN] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
#pragma unroll
    for (int e = t; e < t + T::BM * T::BK; e += T::kThreads)
      as[e / T::BK][e % T::BK] = a.load(tile.row + e / T::BK, k0 + e % T::BK);
#pragma unroll
    for (int e = t; e < t + T::BK * T::BN; e += T::kThreads)
      bs[e / T::BN][e % T::BN] = b.load(k0 + e / T::BN, tile.col + e % T::BN);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < T::BK; ++q) {
      float frag_a[T::TM], frag_b[T::TN];
      for (int r = 0; r < T::TM; ++r) frag_a[r] = as[row + r][q];
      for (int s = 0; s < T::TN; ++s) frag_b[s] = bs[q][col + s];
      for (int r = 0; r < T::TM; ++r)
        for (int s = 0; s < T::TN; ++s) acc[r][s] += frag_a[r] * frag_b[s];
    }
    __syncthreads();
  }
  for (int r = 0; r < T::TM; ++r)
    for (int s = 0; s < T::TN; ++s) store(p, tile, tile.row + row + r, tile.col + col + s, acc[r][s]);
}

template <int BM, int BN, int BK, int TM, int TN>
void Rung<BM, BN, BK, TM, TN>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::thread_tile_2d
