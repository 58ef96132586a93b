// Two buffers for the tiles, one barrier per step, and the next tiles in flight during the arithmetic.
//
// Idea:   a step writes the buffer that the previous step did not read, so no barrier is needed after the arithmetic.
//         The prefetch into registers of 08 hides the wait for memory.
// Second: a thread's 8 x 8 elements are four quads of 4 x 4, half a tile apart: the 16 threads of a row then read 16
//         neighbouring float4s, without bank conflicts. Later rungs keep this layout.
// Bound:  shared-memory latency at the start of each of the BK inner steps.
// Reads:  aligned rows of whole float4s.
#pragma once
#include "vector.h"

namespace sgemm::SGEMM_BACKEND::double_buffer {

template <int BM_, int BN_, int BK_, int TM_, int TN_, int UNROLL>
struct Rung {
  static constexpr const char* kIdea = "two shared buffers, one barrier per step";
  static constexpr const char* kSource = "ladder/11_double_buffer.cuh";
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, kUnroll = UNROLL;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y, kStages = 2;
  static constexpr int kBlocks = kThreads == 256 ? 2 : 1;  // per SM: 128 registers per thread at most
  static constexpr Reads kReads = Reads::kAlignedRows;
  static_assert(BM % TM == 0 && BN % TN == 0 && TM % 4 == 0 && TN % 4 == 0, "the threads' elements fill the tile");
  static_assert(TM == TN, "a loop loads fragments of A and B in turn");
  static_assert(BK % 4 == 0, "a float4 of A stays in one row of the tile");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) kernel(Problem p) {
  alignas(16) __shared__ float as[T::kStages][T::BK][T::BM];  // (STAGES,BK,BM)
  alignas(16) __shared__ float bs[T::kStages][T::BK][T::BN];  // (STAGES,BK,BN)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const int t = threadIdx.x;
  const int row = t / T::X * 4, col = t % T::X * 4;  // the thread's first quad
  const int rows = inside(p.m - tile.row, T::BM), cols = inside(p.n - tile.col, T::BN);

  using ReaderA = TileReader<T::BM, T::BK, T::kThreads>;
  using ReaderB = TileReader<T::BK, T::BN, T::kThreads>;
  ReaderA a(p.a.matrix(tile.batch), tile.row, 0, t);
  ReaderB b(p.b.matrix(tile.batch), 0, tile.col, t);
  float4 next_a[ReaderA::kCopies], next_b[ReaderB::kCopies];
  const auto fetch = [&](int64_t k0) {  // memory to registers
    a.read(next_a, rows, inside(p.k - k0, T::BK));
    b.read(next_b, inside(p.k - k0, T::BK), cols);
    a.from += T::BK;
    b.from += T::BK * b.pitch;
  };
  const auto deposit = [&](int stage) {  // registers to shared memory
#pragma unroll
    for (int i = 0; i < ReaderA::kCopies; ++i)
      store_transposed(as[stage], a.col, a.row + i * ReaderA::kStride, next_a[i]);
#pragma unroll
    for (int i = 0; i < ReaderB::kCopies; ++i)
      *reinterpret_cast<float4*>(&bs[stage][b.row + i * ReaderB::kStride][b.col]) = next_b[i];
  };

  float acc[T::TM][T::TN] = {};
  int stage = 0;
  fetch(0);
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK, stage ^= 1) {
    deposit(stage);
    __syncthreads();
    fetch(k0 + T::BK);
#pragma unroll(T::kUnroll)
    for (int q = 0; q < T::BK; ++q) {
      alignas(16) float frag_a[T::TM], frag_b[T::TN];
      for (int e = 0; e < T::TM; e += 4) {
        *reinterpret_cast<float4*>(&frag_a[e]) = load4(&as[stage][q][row + e * T::Y]);
        *reinterpret_cast<float4*>(&frag_b[e]) = load4(&bs[stage][q][col + e * T::X]);
      }
      for (int r = 0; r < T::TM; ++r)
        for (int s = 0; s < T::TN; ++s) acc[r][s] += frag_a[r] * frag_b[s];
    }
  }
#pragma unroll  // keeps the sums in registers
  for (int r = 0; r < T::TM; ++r)
#pragma unroll
    for (int s = 0; s < T::TN; s += 4)
      store4(p, tile, tile.row + row + r / 4 * 4 * T::Y + r % 4, tile.col + col + s * T::X, &acc[r][s]);
}

template <int BM, int BN, int BK, int TM, int TN, int UNROLL>
void Rung<BM, BN, BK, TM, TN, UNROLL>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::double_buffer
