// Products that split both operands on the fly: one kernel reads raw float32. It is for products in which a convert
// kernel would move more bytes than the product: long k, and batches.
//
// Idea:   producers copy raw panels; splitting warps write their planes to the ring. The planes are K-major for all
//         layouts of the operand. From there on it is the ordinary product: consumers, guard, epilogue and redo are
//         ../gemm's.
// Block:  four warps of producers, eight splitting warps, eight consumer warps. Tiles of 128 x 128, or of half the
//         columns, for which six warps split.
// Sums:   registers hold two accumulators only. The corrections of a step come first. Multiplied by 2^-11, they are the
//         value to which hi * hi is added. While one warpgroup adds, the other one multiplies.
// Bound:  the splitting warps: about 400 instructions for 32 rows and 32 of k, at a fifth of an instruction a cycle.
#pragma once
#include "../gemm/product.cuh"
#include "both_producer.cuh"
#include "splitter.cuh"

namespace sgemm::split {

template <class R>
struct BothScales : FixedScales {
  using Shared = BothShared<R>;
  static constexpr bool kColMajorD = true;
};

template <class R>
struct CorrectionsFirst {
  using Shape = typename R::Shape;
  template <int N>
  __device__ __forceinline__ static void run(const Job&, BothShared<R>& shared, const char*, const SplitRowsView& a,
                                             const SplitRowsView& b, PipelineState<R::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&fresh)[N]) {
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = fresh[e] = 0;
    const auto multiply = [&](const auto& products) {
      hopper::fence_registers(fresh);
      hopper::fence_products();
      products();
      hopper::commit_products();
      hopper::wait_products<0>();
      hopper::fence_registers(fresh);
    };
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step, at.advance()) {
      const StageProducts<Fp16x3, SplitRowsView, SplitRowsView, N> stage{a, b, at.stage * (R::kStageBytes / 16)};
      hopper::wait_suspended(&shared.full[at.stage], at.parity);
      multiply([&] { stage.corrections(fresh, false); });
#pragma unroll
      for (int e = 0; e < N; ++e) fresh[e] *= Fp16x3::kCorrection;
      multiply([&] { stage.main(fresh, true); });
      if (__builtin_expect(__any_sync(~0u, shared.rescaling.any(at.stage)), false))
        rescale(shared.rescaling, at.stage, hopper::opaque(t), sum);
      __syncwarp();
      if (t % 32 == 0) hopper::arrive(&shared.empty[at.stage]);
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += fresh[e];
    }
  }

 private:
  template <class Rescaling, int N>
  __device__ __forceinline__ static void rescale(const Rescaling& rescaling, int stage, int t, float (&sum)[N]) {
    const float upper = rescaling.of(stage, Shape::row(t, 0)), lower = rescaling.of(stage, Shape::row(t, 2));
#pragma unroll
    for (int e = 0; e < N; e += 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float of_col = rescaling.of(stage, Shape::kRows + Shape::col(t, e + i));
        sum[e + i] *= upper * of_col;
        sum[e + 2 + i] *= lower * of_col;
      }
    }
  }
};

constexpr int kBothThreads = kProducers + 2 * kConsumers;  // of tiles of half the size, two warps end at once

template <class Shape>
__global__ void __launch_bounds__(kBothThreads, 1)
    split_both(const __grid_constant__ Job job, const __grid_constant__ RawMaps maps) {
  using R = BothRing<Shape>;
  constexpr bool kHalf = Shape::kHalfSize;
  extern __shared__ __align__(1024) char ring[];
  __shared__ BothShared<R> shared;
  if (threadIdx.x < 32) shared.init(job.a.mapped ? 1 : kProducers, job.b.mapped ? 1 : kProducers);
  if (threadIdx.x == 0 && job.a.mapped) hopper::prefetch_map(&maps.a);
  if (threadIdx.x == 0 && job.b.mapped) hopper::prefetch_map(&maps.b);
  __syncthreads();
  hopper::wait_for_predecessor();
  hopper::launch_dependents();

  char* const raw = ring + R::kBytes;
  const int t = static_cast<int>(threadIdx.x) - kProducers;
  if (t < 0) {
    hopper::release_registers<kHalf ? 40 : 32>();
    copy_raw<R>(job, maps, raw, shared);
  } else if (t < kConsumers) {
    if constexpr (kHalf)
      hopper::acquire_registers<104>();
    else
      hopper::release_registers<80>();
    // B's warps are the last ones: if A has up to 64 rows, each scheduler has one warp that splits.
    const int warp = t / 32, idle = kConsumers / 32 - R::kSplitters, first_of_b = Shape::kRows / kLines + idle;
    if (warp < Shape::kRows / kLines || warp >= first_of_b)
      split_panels<R>(job, ring, shared, warp < first_of_b ? warp : warp - idle);
  } else {
    hopper::acquire_registers<kHalf ? 112 : 144>();
    float* const staging = reinterpret_cast<float*>(raw + R::kRawStages * R::kStageBytes);
    consume<R, BothScales<R>, CorrectionsFirst<R>, SplitRowsView, SplitRowsView>(job, ring, staging, shared,
                                                                                 t - kConsumers, TileScheduler(job));
  }
}

}  // namespace sgemm::split
