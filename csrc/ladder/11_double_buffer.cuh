// Two buffers for the tiles, one barrier per step, and the next tiles in flight during the arithmetic.
//
// Idea:   a step writes the buffer that the previous step did not read, so no barrier is needed after the arithmetic.
//         The prefetch into registers of 08 hides the wait for memory. A thread's 8 x 8 elements are four quads of 4 x
//         4, half a tile apart: the 16 threads of a row then read 16 neighbouring float4s, without bank conflicts.
// Bound:  shared-memory latency at the start of each of the BK inner steps.
// Reads:  aligned rows of whole float4s.
#pragma once
#include "vector.h"

namespace sgemm::SGEMM_BACKEND::double_buffer {

template <int UNROLL>
struct Rung {
  static constexpr const char* kIdea = "two shared buffers, one barrier per step";
  static constexpr const char* kSource = "ladder/11_double_buffer.cuh";
  static constexpr int BM = 128, BN = 128, BK = 8, TM = 8, TN = 8;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y;
  static constexpr int kBlocks = kThreads == 256 ? 2 : 1;  // per SM: 128 registers per thread at most
  static constexpr Reads kReads = Reads::kAlignedRows;
  static_assert(BM * BK == 4 * kThreads && BK * BN == 4 * kThreads, "each thread copies one float4 of A and one of B");
  static void launch(const Problem& p, const Context& context);
};

template <class T, int UNROLL>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) kernel(Problem p) {
  alignas(16) __shared__ float as[2][T::BK][T::BM];  // (2,BK,BM)
  alignas(16) __shared__ float bs[2][T::BK][T::BN];  // (2,BK,BN)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const int t = threadIdx.x;
  const int row = t / T::X * 4, col = t % T::X * 4;  // the thread's first quad
  const int rows = inside(p.m - tile.row, T::BM), cols = inside(p.n - tile.col, T::BN);

  using ReaderA = TileReader<T::BM, T::BK, T::kThreads>;
  using ReaderB = TileReader<T::BK, T::BN, T::kThreads>;
  ReaderA a(p.a.matrix(tile.batch), tile.row, 0, t);
  ReaderB b(p.b.matrix(tile.batch), 0, tile.col, t);
  float4 next_a[1], next_b[1];
  const auto fetch = [&](int64_t k0) {  // memory to registers
    a.read(next_a, rows, inside(p.k - k0, T::BK));
    b.read(next_b, inside(p.k - k0, T::BK), cols);
    a.from += T::BK;
    b.from += T::BK * b.pitch;
  };
  const auto deposit = [&](int buffer) {  // registers to shared memory
    store_transposed(as[buffer], a.col, a.row, next_a[0]);
    *reinterpret_cast<float4*>(&bs[buffer][b.row][b.col]) = next_b[0];
  };

  float acc[T::TM][T::TN] = {};
  int buffer = 0;
  fetch(0);
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK, buffer ^= 1) {
    deposit(buffer);
    __syncthreads();
    fetch(k0 + T::BK);
#pragma unroll UNROLL
    for (int q = 0; q < T::BK; ++q) {
      alignas(16) float frag_a[T::TM], frag_b[T::TN];
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<float4*>(&frag_a[4 * h]) = load4(&as[buffer][q][row + h * T::BM / 2]);
        *reinterpret_cast<float4*>(&frag_b[4 * h]) = load4(&bs[buffer][q][col + h * T::BN / 2]);
      }
      for (int r = 0; r < T::TM; ++r)
        for (int s = 0; s < T::TN; ++s) acc[r][s] += frag_a[r] * frag_b[s];
    }
  }
#pragma unroll  // keeps the sums in registers
  for (int r = 0; r < T::TM; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      store4(p, tile, tile.row + row + r / 4 * T::BM / 2 + r % 4, tile.col + col + h * T::BN / 2, &acc[r][4 * h]);
}

template <int UNROLL>
void Rung<UNROLL>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung, UNROLL>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::double_buffer
