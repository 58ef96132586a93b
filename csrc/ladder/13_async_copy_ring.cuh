// A ring of tiles in shared memory, filled by copies that bypass registers.
//
// Idea:   cp.async copies the tiles of later steps while this one is multiplied: no register waits for memory, and no
//         thread stores what it loaded. Copies can't transpose, so A's tile has the layout of memory, and a thread
//         reads four of k of each of its rows at once.
// Bound:  the FFMA pipe, reduced by the addresses of copies and by the barrier of each step.
// Reads:  aligned rows of whole float4s.
#pragma once
#include "vector.h"

namespace sgemm::SGEMM_BACKEND::async_copy_ring {

struct Rung {
  static constexpr const char* kIdea = "a ring of tiles, filled by asynchronous copies";
  static constexpr const char* kSource = "ladder/13_async_copy_ring.cuh";
  static constexpr int BM = 128, BN = 128, BK = 16, TM = 8, TN = 8;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y, kStages = 3;
  static constexpr int kBlocks = kThreads == 256 ? 2 : 1;  // per SM: 128 registers per thread at most
  static constexpr Reads kReads = Reads::kAlignedRows;
  static_assert(BM % TM == 0 && BN % TN == 0 && TM % 4 == 0 && TN % 4 == 0, "the threads' elements fill the tile");
  static_assert(BK % 4 == 0, "a thread reads four of k of A at once");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) kernel(Problem p) {
  alignas(16) __shared__ float as[T::kStages][T::BM][T::BK];  // (STAGES,BM,BK)
  alignas(16) __shared__ float bs[T::kStages][T::BK][T::BN];  // (STAGES,BK,BN)
  Tile tile = block_tile(p.d, T::BM, T::BN);
  const int t = threadIdx.x;
  const int row = t / T::X * 4, col = t % T::X * 4;  // the thread's first quad
  const int rows = inside(p.m - tile.row, T::BM), cols = inside(p.n - tile.col, T::BN);

  using ReaderA = TileReader<T::BM, T::BK, T::kThreads>;
  using ReaderB = TileReader<T::BK, T::BN, T::kThreads>;
  ReaderA a(p.a.matrix(tile.batch), tile.row, 0, t);
  ReaderB b(p.b.matrix(tile.batch), 0, tile.col, t);
  const auto fetch = [&](int stage, int64_t k0) {  // memory to shared memory
    a.copy(&as[stage][0][0], rows, inside(p.k - k0, T::BK));
    b.copy(&bs[stage][0][0], inside(p.k - k0, T::BK), cols);
    commit_copies();
    a.from += T::BK;
    b.from += T::BK * b.pitch;
  };
  alignas(16) float frag_a[T::TM][4], frag_b[T::TN];
  const auto load_fragments = [&](int stage, int q) {  // shared memory to registers
#pragma unroll
    for (int r = 0; r < T::TM && q % 4 == 0; ++r)
      *reinterpret_cast<float4*>(frag_a[r]) = load4(&as[stage][row + r / 4 * 4 * T::Y + r % 4][q]);
#pragma unroll
    for (int s = 0; s < T::TN; s += 4) *reinterpret_cast<float4*>(&frag_b[s]) = load4(&bs[stage][q][col + s * T::X]);
  };

  float acc[T::TM][T::TN] = {};
  const auto multiply = [&](int stage) {
#pragma unroll
    for (int q = 0; q < T::BK; ++q) {
      load_fragments(stage, q);
      // Every second row runs backwards: two FFMAs in a row then share a second operand, which the reuse cache still
      // holds.
#pragma unroll
      for (int r = 0; r < T::TM; ++r)
#pragma unroll
        for (int u = 0; u < T::TN; ++u) {
          const int s = r % 2 ? T::TN - 1 - u : u;
          acc[r][s] += frag_a[r][q % 4] * frag_b[s];
        }
    }
  };
  int stage = 0;
  for (int i = 0; i < T::kStages - 1; ++i) fetch(i, i * T::BK);
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
    wait_copies<T::kStages - 2>();
    __syncthreads();  // the stage has arrived, and all threads have multiplied the previous one
    fetch((stage + T::kStages - 1) % T::kStages, k0 + (T::kStages - 1) * T::BK);
    multiply(stage);
    stage = (stage + 1) % T::kStages;
  }
  // The same tile again, because keeping it during the loop would take registers.
  tile = block_tile(p.d, T::BM, T::BN);
#pragma unroll  // keeps the sums in registers
  for (int r = 0; r < T::TM; ++r)
#pragma unroll
    for (int s = 0; s < T::TN; s += 4)
      store4(p, tile, tile.row + row + r / 4 * 4 * T::Y + r % 4, tile.col + col + s * T::X, &acc[r][s]);
}

inline void Rung::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(kThreads), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::async_copy_ring
