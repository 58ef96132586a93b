// Elements of a product in float32.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace sgemm::split {

// What a part of their products comes to. Those with Inf or NaN are apart, for they alone decide.
struct DotSums {
  float sum, of_specials;  // the latter is finite, and 0, unless there are some
};

// Of k from `begin` to `end`, by a warp; the same in all lanes.
static __device__ __noinline__ DotSums add_products(const float* a, int64_t a_step, const float* b, int64_t b_step,
                                                    int64_t begin, int64_t end) {
  const int lane = threadIdx.x % 32;
  const auto add_up = [](float x) {
    for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
  };
  constexpr int kAtOnce = 8;  // reads: one after the other, each would wait for memory
  DotSums of_lane = {0, 0};
#pragma unroll 1
  for (int64_t q0 = begin; q0 < end; q0 += 32 * kAtOnce) {
    const int64_t q = q0 + lane;
    float x[kAtOnce], y[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool inside = q + 32 * i < end;
      x[i] = inside ? a[(q + 32 * i) * a_step] : 0.0f;
      y[i] = inside ? b[(q + 32 * i) * b_step] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      of_lane.sum = fmaf(x[i], y[i], of_lane.sum);
      if (!isfinite(x[i]) || !isfinite(y[i])) of_lane.of_specials += x[i] * y[i];
    }
    // No product changes a NaN: of a row of Inf, its first products most often decide.
    if (__any_sync(~0u, isnan(of_lane.of_specials))) return {NAN, NAN};
  }
  return {add_up(of_lane.sum), add_up(of_lane.of_specials)};
}

// The element, by a warp, from the sums of all of k. One that overflows is added up in the order of k, for another
// order may overflow where that one doesn't.
static __device__ __noinline__ float add_in_order(const float* a, int64_t a_step, const float* b, int64_t b_step,
                                                  int64_t depth) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll 1
  for (int64_t q = 0; q < depth; q += 32) {
    const bool inside = q + lane < depth;
    const float x = inside ? a[(q + lane) * a_step] : 0, y = inside ? b[(q + lane) * b_step] : 0;
    for (int i = 0; i < 32; ++i) sum = fmaf(__shfl_sync(~0u, x, i), __shfl_sync(~0u, y, i), sum);
  }
  return sum;
}

__device__ __forceinline__ float whole_product(const float* a, int64_t a_step, const float* b, int64_t b_step,
                                               int64_t depth, const DotSums& sums) {
  if (!isfinite(sums.of_specials)) return sums.of_specials;
  return isfinite(sums.sum) ? sums.sum : add_in_order(a, a_step, b, b_step, depth);
}

// Both, by one warp.
__device__ __forceinline__ float dot_product(const float* a, int64_t a_step, const float* b, int64_t b_step,
                                             int64_t depth) {
  return whole_product(a, a_step, b, b_step, depth, add_products(a, a_step, b, b_step, 0, depth));
}

}  // namespace sgemm::split
