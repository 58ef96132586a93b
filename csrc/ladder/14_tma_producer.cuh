// A producer warp, which only copies, through tensor maps.
//
// Idea:   one instruction of one thread copies a tile (TMA): the hardware computes its addresses, and writes zeros
//         beyond the matrix's end. The producer and the consumers signal full and empty stages through mbarriers. Warps
//         wait only for data that they need, and no barrier stops all warps.
// Second: the producer releases its registers for the consumers, which hold 8 x 16 sums each and read fewer fragments.
// Bound:  the FFMA pipe, reduced by a block's prologue and epilogue, which no other block on the SM overlaps.
// Reads:  layouts that tensor maps describe. Hopper only.
#pragma once
#include "vector.h"
#if defined(__CUDACC__)
#include "tensor_tiles.cuh"
#endif

namespace sgemm::SGEMM_BACKEND::tma_producer {

struct Rung {
  static constexpr const char* kIdea = "a producer warp fills the ring by tensor maps";
  static constexpr const char* kSource = "ladder/14_tma_producer.cuh";
  static constexpr int BM = 256, BN = 128, BK = 16, TM = 8, TN = 16;
  static constexpr int X = BN / TN, Y = BM / TM;  // threads along n and m
  static constexpr int kThreads = X * Y, kStages = 4, kPlanes = 1;
  static constexpr Reads kReads = Reads::kMappedRows;
  static_assert(BM % TM == 0 && BN % TN == 0 && TM % 4 == 0 && TN % 4 == 0, "the threads' elements fill the tile");
  static_assert(BK % 4 == 0, "a thread reads four of k of A at once");
  static void launch(const Problem& p, const Context& context);
};

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(T::kThreads + 128, 1)
    kernel(const __grid_constant__ Problem p, const __grid_constant__ OperandMaps maps) {
  extern __shared__ __align__(1024) float ring[];
  const auto as = reinterpret_cast<float(*)[T::BM][T::BK]>(ring);             // (STAGES,BM,BK)
  const auto bs = reinterpret_cast<float(*)[T::BK][T::BN]>(as + T::kStages);  // (STAGES,BK,BN)
  __shared__ uint64_t full[T::kStages], empty[T::kStages];
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const int t = threadIdx.x;
  const int row = t / T::X * 4, col = t % T::X * 4;  // the thread's first quad
  PipelineState<T::kStages> at;
  init_barriers(full, empty, T::kThreads);

  if (t >= T::kThreads) {
    hopper::release_registers<40>();
    for (int64_t k0 = 0; t == T::kThreads && k0 < p.k; k0 += T::BK, at.advance()) {
      hopper::wait(&empty[at.stage], at.parity ^ 1);
      copy_tiles<T>(p, maps, tile, k0, as[at.stage], bs[at.stage], &full[at.stage]);
    }
    return;
  }
  hopper::acquire_registers<232>();
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
#pragma unroll 8  // 8 of k: longer loops miss the instruction cache
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
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK, at.advance()) {
    hopper::wait(&full[at.stage], at.parity);
    multiply(at.stage);
    __syncwarp();
    if (t % 32 == 0) hopper::arrive(&empty[at.stage]);
  }
#pragma unroll  // keeps the sums in registers
  for (int r = 0; r < T::TM; ++r)
#pragma unroll
    for (int s = 0; s < T::TN; s += 4)
      store4(p, tile, tile.row + row + r / 4 * 4 * T::Y + r % 4, tile.col + col + s * T::X, &acc[r][s]);
}
#endif

}  // namespace sgemm::SGEMM_BACKEND::tma_producer
