// A column of TM neighbouring elements per thread, and a tile that is short along k.
//
// Idea:   an element of B's tile, held in a register, serves TM multiply-adds. BK is much smaller than BM and BN: a
//         larger tile of C (less traffic) fits into the same shared memory.
// Bound:  shared-memory loads of A's tile: one for each multiply-add, though a whole warp reads the same address.
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::thread_tile_1d {

template <int BM_, int BN_, int BK_, int TM_>
struct Rung {
  static constexpr const char* kIdea = "a column of neighbouring elements per thread, short tiles along k";
  static constexpr const char* kSource = "ladder/07_thread_tile_1d.cuh";
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = 1;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y;
  static constexpr int kBlocks = 1024 / kThreads;  // per SM: 64 registers per thread at most
  static constexpr Reads kReads = Reads::kAnyStrides;
  static_assert(BM % TM == 0 && BN % TN == 0, "the threads' elements fill the tile");
  static_assert(BM * BK == kThreads && BK * BN == kThreads, "each thread copies one element of A and one of B");
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

  float acc[T::TM] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
    as[t / T::BK][t % T::BK] = a.load(tile.row + t / T::BK, k0 + t % T::BK);
    bs[t / T::BN][t % T::BN] = b.load(k0 + t / T::BN, tile.col + t % T::BN);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < T::BK; ++q) {
      const float frag_b = bs[q][col];
      for (int r = 0; r < T::TM; ++r) acc[r] += as[row + r][q] * frag_b;
    }
    __syncthreads();
  }
  for (int r = 0; r < T::TM; ++r) store(p, tile, tile.row + row + r, tile.col + col, acc[r]);
}

template <int BM, int BN, int BK, int TM>
void Rung<BM, BN, BK, TM>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::thread_tile_1d
