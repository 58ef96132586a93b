// float4 loads, four neighbouring elements of C per thread, and the next tiles in flight during the arithmetic.
//
// Idea:   an instruction loads 16 bytes from memory or shared memory: two loads for four multiply-adds. The next step's
//         elements are fetched into registers before this step's arithmetic, which hides their latency. A's tile is
//         transposed as it is stored, so that a warp reads neighbouring rows of A from neighbouring banks.
// Bound:  shared-memory loads, still one for two multiply-adds.
// Reads:  aligned rows of whole float4s; operands of other layouts are packed first.
#pragma once
#include "vector.h"

namespace sgemm::SGEMM_BACKEND::vector_prefetch {

template <int BLOCK>
struct Rung {
  static constexpr const char* kIdea = "float4 moves, the next tiles prefetched into registers";
  static constexpr const char* kSource = "ladder/08_vector_prefetch.cuh";
  static constexpr int BM = BLOCK, BN = BLOCK, BK = BLOCK, TM = 1, TN = 4;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y;
  static constexpr Reads kReads = Reads::kAlignedRows;
  static_assert(BLOCK % 4 == 0 && kThreads <= 1024, "each thread copies one float4 of A and one of B");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) kernel(Problem p) {
  alignas(16) __shared__ float as[T::BK][T::BM];  // (BK,BM)
  alignas(16) __shared__ float bs[T::BK][T::BN];  // (BK,BN)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const ConstMatrix a = p.a.matrix(tile.batch), b = p.b.matrix(tile.batch);
  const int row = threadIdx.x / T::X * T::TM, col = threadIdx.x % T::X * T::TN;  // the thread's first element

  float4 next_a = load4(a, tile.row + row, col);
  float4 next_b = load4(b, row, tile.col + col);
  float acc[T::TN] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
    store_transposed(as, col, row, next_a);
    *reinterpret_cast<float4*>(&bs[row][col]) = next_b;
    __syncthreads();
    if (k0 + T::BK < p.k) {
      next_a = load4(a, tile.row + row, k0 + T::BK + col);
      next_b = load4(b, k0 + T::BK + row, tile.col + col);
    }
#pragma unroll
    for (int q = 0; q < T::BK; ++q) {
      const float frag_a = as[q][row];
      const float4 frag_b = load4(&bs[q][col]);
      acc[0] += frag_a * frag_b.x;
      acc[1] += frag_a * frag_b.y;
      acc[2] += frag_a * frag_b.z;
      acc[3] += frag_a * frag_b.w;
    }
    __syncthreads();
  }
  for (int s = 0; s < T::TN; ++s) store(p, tile, tile.row + row, tile.col + col + s, acc[s]);
}

template <int BLOCK>
void Rung<BLOCK>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::vector_prefetch
