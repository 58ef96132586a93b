// Three products, for 22 significand bits of every element.
//
// Idea:   x = high + low, both TF32: the remainder of x after rounding to 11 bits is written to a second tile. The sum
//         high high + high low + low high lacks only low low, 2^-22 of the product.
// Bound:  the threads that split, while the tensor cores wait. The error of long sums grows, because the tensor cores
//         truncate sums where float32 rounds them. Elements that are too small or not finite are not handled. The
//         family split (docs/split.md) solves all of this: other warps split, sums leave the tensor cores in time, and
//         a guard certifies every result.
// Reads:  layouts that tensor maps describe, both operands along k. Hopper only.
#pragma once
#include "vector.h"
#if defined(__CUDACC__)
#include "tensor_tiles.cuh"
#endif

namespace sgemm::SGEMM_BACKEND::wgmma_tf32x3 {

struct Rung {
  static constexpr const char* kIdea = "three products of TF32, 22 bits of each element";
  static constexpr const char* kSource = "ladder/17_wgmma_tf32x3.cuh";
  static constexpr int BM = 128, BN = 128, BK = 32, TM = 2, TN = 32, kBits = 22;
  static constexpr int kThreads = 256, kStages = 3, kPlanes = 2;
  static constexpr Reads kReads = Reads::kMappedAlongK;
  static_assert(BK * sizeof(float) == 128, "a row of a tile is one of the swizzle's");
  static size_t workspace(const Problem& p, const Device& device);
  static void launch(const Problem& p, const Context& context);
};

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(T::kThreads + 128, 1)
    kernel(const __grid_constant__ Problem p, const __grid_constant__ OperandMaps maps,
           const __grid_constant__ SharedTiles shared) {
  extern __shared__ __align__(1024) float ring[];
  const auto as = reinterpret_cast<float(*)[T::BM][T::BK]>(ring);             // (STAGES,BM,BK)
  const auto bs = reinterpret_cast<float(*)[T::BN][T::BK]>(as + T::kStages);  // (STAGES,BN,BK)
  const auto low_as = reinterpret_cast<float(*)[T::BM][T::BK]>(bs + T::kStages);
  const auto low_bs = reinterpret_cast<float(*)[T::BN][T::BK]>(low_as + T::kStages);
  __shared__ uint64_t full[T::kStages], empty[T::kStages];
  StreamKScheduler scheduler(shared.deal);
  WorkTile work;
  const int t = threadIdx.x;
  const int row = t / 32 * 16 + t % 32 / 4, col = t % 4 * 2;  // the thread's first sum
  PipelineState<T::kStages> at;
  init_barriers(full, empty, T::kThreads);

  if (t >= T::kThreads) {
    hopper::release_registers<40>();
    while (t == T::kThreads && scheduler.next(work)) {
      const Tile tile = tile_of<T>(p, work);
      for (int step = work.first; step < work.first + work.steps; ++step, at.advance()) {
        hopper::wait(&empty[at.stage], at.parity ^ 1);
        copy_tiles<T>(p, maps, tile, int64_t{step} * T::BK, as[at.stage], bs[at.stage], &full[at.stage]);
      }
    }
    return;
  }
  hopper::acquire_registers<232>();
  float acc[T::TM * T::TN];
  const auto multiply = [&](int stage) {
    split<T::kThreads>(as[stage], low_as[stage], t);
    split<T::kThreads>(bs[stage], low_bs[stage], t);
    hopper::fence_async_proxy();
    hopper::sync_some(1, T::kThreads);
    const uint64_t a = descriptor(as[stage][t / 128 * 64]), b = descriptor(bs[stage]);
    const uint64_t low_a = descriptor(low_as[stage][t / 128 * 64]), low_b = descriptor(low_bs[stage]);
    hopper::fence_products();
#pragma unroll
    for (int q = 0; q < T::BK / 8; ++q) {
      hopper::multiply_tf32(acc, low_a + 2 * q, b + 2 * q);
      hopper::multiply_tf32(acc, a + 2 * q, low_b + 2 * q);
      hopper::multiply_tf32(acc, a + 2 * q, b + 2 * q);
    }
    hopper::commit_products();
    hopper::wait_products<0>();
    hopper::fence_registers(acc);
  };
  while (scheduler.next(work)) {
    clear(acc);
    for (int step = 0; step < work.steps; ++step, at.advance()) {
      hopper::wait(&full[at.stage], at.parity);
      multiply(at.stage);
      __syncwarp();
      if (t % 32 == 0) hopper::arrive(&empty[at.stage]);
    }
    if (work.count > 1 && !add_parts<T>(shared, work, acc)) continue;
    const Tile tile = tile_of<T>(p, work);
#pragma unroll  // keeps the sums in registers
    for (int e = 0; e < T::TM * T::TN; ++e)
      store(p, tile, tile.row + row + e / 2 % 2 * 8, tile.col + col + e / 4 * 8 + e % 2, acc[e]);
  }
}
#endif

}  // namespace sgemm::SGEMM_BACKEND::wgmma_tf32x3
