// The two-dimensional thread tile with every access 16 bytes wide.
//
// Idea:   float4 from memory to shared memory, from shared memory to registers, and from registers to C: a quarter of
//         the load and store instructions. A is transposed as it is stored, so that a thread's rows are neighbours
//         there.
// Bound:  the wait for memory at each step, between two barriers.
// Reads:  aligned rows of whole float4s.
#pragma once
#include "vector.h"

namespace sgemm::SGEMM_BACKEND::thread_tile_2d_vector {

template <int BM_, int BN_, int BK_, int TM_, int TN_>
struct Rung {
  static constexpr const char* kIdea = "two-dimensional thread tile, every move a float4, A transposed";
  static constexpr const char* kSource = "ladder/10_thread_tile_2d_vector.cuh";
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y;
  static constexpr int kBlocks = kThreads == 256 ? 2 : 1;  // per SM: 128 registers per thread at most
  static constexpr Reads kReads = Reads::kAlignedRows;
  static_assert(BM % TM == 0 && BN % TN == 0 && TM % 4 == 0 && TN % 4 == 0, "the threads' elements fill the tile");
  static_assert(BM * BK % (4 * kThreads) == 0 && BK * BN % (4 * kThreads) == 0, "the threads copy whole tiles");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) kernel(Problem p) {
  alignas(16) __shared__ float as[T::BK][T::BM];  // (BK,BM)
  alignas(16) __shared__ float bs[T::BK][T::BN];  // (BK,BN)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const ConstMatrix a = p.a.matrix(tile.batch), b = p.b.matrix(tile.batch);
  const int t = threadIdx.x;
  const int row = t / T::X * T::TM, col = t % T::X * T::TN;  // the thread's first element in the tile

  float acc[T::TM][T::TN] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
#pragma unroll
    for (int e = 4 * t; e < 4 * t + T::BM * T::BK; e += 4 * T::kThreads)
      store_transposed(as, e % T::BK, e / T::BK, load4(a, tile.row + e / T::BK, k0 + e % T::BK));
#pragma unroll
    for (int e = 4 * t; e < 4 * t + T::BK * T::BN; e += 4 * T::kThreads)
      *reinterpret_cast<float4*>(&bs[e / T::BN][e % T::BN]) = load4(b, k0 + e / T::BN, tile.col + e % T::BN);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < T::BK; ++q) {
      alignas(16) float frag_a[T::TM], frag_b[T::TN];
      for (int r = 0; r < T::TM; r += 4) *reinterpret_cast<float4*>(&frag_a[r]) = load4(&as[q][row + r]);
      for (int s = 0; s < T::TN; s += 4) *reinterpret_cast<float4*>(&frag_b[s]) = load4(&bs[q][col + s]);
      for (int r = 0; r < T::TM; ++r)
        for (int s = 0; s < T::TN; ++s) acc[r][s] += frag_a[r] * frag_b[s];
    }
    __syncthreads();
  }
  for (int r = 0; r < T::TM; ++r)
    for (int s = 0; s < T::TN; s += 4) store4(p, tile, tile.row + row + r, tile.col + col + s, &acc[r][s]);
}

template <int BM, int BN, int BK, int TM, int TN>
void Rung<BM, BN, BK, TM, TN>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::thread_tile_2d_vector
