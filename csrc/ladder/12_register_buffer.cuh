// Two buffers in shared memory and two in registers.
//
// Idea:   while a thread multiplies one pair of fragments it loads the next, so that the arithmetic never waits for
//         shared memory. The step's last fragments are multiplied after the next tiles have become visible.
// Bound:  the FFMA pipe, reduced by register-bank conflicts and by the threads per SM that registers cost.
// Reads:  aligned rows of whole float4s.
#pragma once
#include "vector.h"

namespace sgemm::SGEMM_BACKEND::register_buffer {

template <int BM_, int BN_, int BK_, int TM_, int TN_>
struct Rung {
  static constexpr const char* kIdea = "two buffers in shared memory and two in registers";
  static constexpr const char* kSource = "ladder/12_register_buffer.cuh";
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y, kStages = 2;
  static constexpr int kBlocks = kThreads == 256 ? 2 : 1;  // per SM: 128 registers per thread at most
  static constexpr Reads kReads = Reads::kAlignedRows;
  static_assert(BM % TM == 0 && BN % TN == 0 && TM % 4 == 0 && TN % 4 == 0, "the threads' elements fill the tile");
  static_assert(BK % 4 == 0, "fragments alternate, and a float4 of A stays in one row of the tile");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) kernel(Problem p) {
  alignas(16) __shared__ float as[T::kStages][T::BK][T::BM];  // (STAGES,BK,BM)
  alignas(16) __shared__ float bs[T::kStages][T::BK][T::BN];  // (STAGES,BK,BN)
  Tile tile = block_tile(p.d, T::BM, T::BN);
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
  alignas(16) float frag_a[2][T::TM], frag_b[2][T::TN];
  const auto load_fragments = [&](int stage, int q) {  // shared memory to registers
#pragma unroll
    for (int r = 0; r < T::TM; r += 4)
      *reinterpret_cast<float4*>(&frag_a[q % 2][r]) = load4(&as[stage][q][row + r * T::Y]);
#pragma unroll
    for (int s = 0; s < T::TN; s += 4)
      *reinterpret_cast<float4*>(&frag_b[q % 2][s]) = load4(&bs[stage][q][col + s * T::X]);
  };

  float acc[T::TM][T::TN] = {};
  int stage = 0;
  fetch(0);
  deposit(stage);
  __syncthreads();
  load_fragments(stage, 0);
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
    const bool more = k0 + T::BK < p.k;
    if (more) fetch(k0 + T::BK);
#pragma unroll
    for (int q = 0; q < T::BK; ++q) {
      if (q + 1 < T::BK) {
        load_fragments(stage, q + 1);
      } else if (more) {
        stage ^= 1;
        deposit(stage);
        __syncthreads();
        load_fragments(stage, 0);
      }
      // Every second row runs backwards: two FFMAs in a row then share a second operand, which the reuse cache still
      // holds.
#pragma unroll
      for (int r = 0; r < T::TM; ++r)
#pragma unroll
        for (int u = 0; u < T::TN; ++u) {
          const int s = r % 2 ? T::TN - 1 - u : u;
          acc[r][s] += frag_a[q % 2][r] * frag_b[q % 2][s];
        }
    }
  }
  // The same tile again, because keeping it during the loop would take registers.
  tile = block_tile(p.d, T::BM, T::BN);
#pragma unroll  // keeps the sums in registers
  for (int r = 0; r < T::TM; ++r)
#pragma unroll
    for (int s = 0; s < T::TN; s += 4)
      store4(p, tile, tile.row + row + r / 4 * 4 * T::Y + r % 4, tile.col + col + s * T::X, &acc[r][s]);
}

template <int BM, int BN, int BK, int TM, int TN>
void Rung<BM, BN, BK, TM, TN>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::register_buffer
