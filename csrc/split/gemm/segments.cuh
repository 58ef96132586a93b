// The product of float16 planes that adds up segments of k: batch-invariant products of many rows (plan/segments.h).
//
// Idea:   the main loop runs once for each segment. The total of a tile's segments lies in shared memory, behind a ring
//         of fewer stages. A thread reads and writes only the totals of its own sums.
// Order:  0 + v0 + v1 + ..., as fix_up() adds up the parts of a tile that has few rows.
#pragma once
#include "product.cuh"

namespace sgemm::split {

// The totals of a warp's sums are neighbours: (warp, quad, lane) float4. The epilogue stages bands in the same memory.
template <class Shape>
inline constexpr int kTotalBytes = kConsumers * 4 * Shape::kSums;
template <class Shape>
using SegmentRing = Ring<Fp16x3, Shape, Shape::kHalfSize ? 8 : 5>;

template <class R>
struct AddSegments {
  template <class ViewA, class ViewB, int N>
  __device__ __forceinline__ static void run(const Job& job, ProductShared& shared, char* ring, const ViewA& a,
                                             const ViewB& b, PipelineState<R::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&correction)[N]) {
    float4* const total = reinterpret_cast<float4*>(ring + R::kBytes) + t / 32 * (N * 8) + t % 32;
#pragma unroll 1
    for (int first = 0;;) {
      const int count = min(job.segment, steps.count - first);
      const TileSteps own = {count, max(0, min(steps.ahead - first, count)), steps.parity};
      KeepCorrections<Fp16x3, R>::run(job, shared, ring, a, b, at, t, own, sum, correction);
      if (first > 0) {
#pragma unroll
        for (int e = 0; e < N; e += 4) {
          const float4 before = total[e * 8];
          sum[e] += before.x;
          sum[e + 1] += before.y;
          sum[e + 2] += before.z;
          sum[e + 3] += before.w;
        }
      }
      first += count;
      if (first == steps.count) break;
#pragma unroll
      for (int e = 0; e < N; e += 4) total[e * 8] = make_float4(sum[e], sum[e + 1], sum[e + 2], sum[e + 3]);
    }
    __syncwarp();  // all lanes have read their totals; the epilogue may stage a band
  }
};

template <class Shape, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1) split_product_in_segments(const __grid_constant__ Job job) {
  using R = SegmentRing<Shape>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ ProductShared shared;
  if (threadIdx.x < 32) shared.init<R>(1, 1, 1);
  __syncthreads();

  if (threadIdx.x < 128) {
    hopper::release_registers<40>();
    if (threadIdx.x == 0) produce<Fp16x3, R>(job, ring, shared, TileScheduler(job));
  } else {
    hopper::acquire_registers<232>();
    hopper::wait_for_predecessor();
    hopper::launch_dependents();
    const int t = threadIdx.x - 128;
    float* staging = reinterpret_cast<float*>(ring + R::kBytes) + t / 32 * (Shape::kSums * 32 - kStagedFloats);
    consume<R, FixedScales, AddSegments<R>, PlaneView<A_ALONG_M, R::kRows>, PlaneView<B_ALONG_N, R::kCols>>(
        job, ring, staging, shared, t, TileScheduler(job));
  }
}

}  // namespace sgemm::split
