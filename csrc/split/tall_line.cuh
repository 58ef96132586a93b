// How a lane of split_fp16x3_tall's warps has its part of rows of A and of columns of B, and splits it.
#pragma once
#include "format.cuh"
#include "tall.h"

namespace sgemm::split {

// Of 16 of k, the place of the e-th of a lane's four.
template <TallReads READS>
__device__ __forceinline__ int place_of_k(int t, int e) {
  return READS == TallReads::kQuads ? 4 * t + e : 4 * e + t;
}
// Of 16 columns, likewise.
__device__ __forceinline__ int place_of_col(TallStores stores, int t, int e) {
  return stores == TallStores::kQuads ? 4 * t + e : 4 * e + t;
}

// A row of A or a column of B: a lane's elements, a quarter of it.
template <int STEPS>
using LineElements = float[STEPS][4];

// Two rows as float16s, in the order of a tensor core's operand.
template <int STEPS>
struct RowPlanes {
  uint32_t hi[2][STEPS][2], lo[2][STEPS][2];
};

// The larger magnitude; NaN, if there is one.
__device__ __forceinline__ float larger_or_nan(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(fabsf(x)), "f"(fabsf(y)));
  return result;
}

// Of lanes 4 g ... 4 g + 3, which share a line.
template <class T, class Op>
__device__ __forceinline__ T of_quad(T x, const Op& op) {
  x = op(x, __shfl_xor_sync(~0u, x, 2));
  return op(x, __shfl_xor_sync(~0u, x, 1));
}

// The bits of a line's largest magnitude.
template <int STEPS>
__device__ __forceinline__ uint32_t largest_magnitude(const LineElements<STEPS>& x) {
  float largest = 0;
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
    largest = larger_or_nan(largest, larger_or_nan(larger_or_nan(x[s][0], x[s][1]), larger_or_nan(x[s][2], x[s][3])));
  return __float_as_uint(of_quad(largest, larger_or_nan));
}

// Twice the bits of the smallest magnitude that isn't zero, less one: of the lane's elements.
template <int STEPS>
__device__ __forceinline__ uint32_t smallest_magnitude(const LineElements<STEPS>& x) {
  uint32_t smallest = ~0u;
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int e = 0; e < 4; ++e) smallest = min(smallest, 2 * __float_as_uint(x[s][e]) - 1);
  return smallest;
}

// How many of a line's elements lose accuracy by their scale.
template <int STEPS>
__device__ __forceinline__ uint32_t count_small(const LineElements<STEPS>& x, float factor) {
  uint32_t small = 0;
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int e = 0; e < 4; ++e) small += is_small<Fp16x3>(x[s][e], x[s][e] * factor);
  return of_quad(small, [](uint32_t a, uint32_t b) { return a + b; });
}

__device__ __forceinline__ float4 scaled(const float (&x)[4], float factor) {
  return make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
}

template <int STEPS>
__device__ __forceinline__ void split_rows(const LineElements<STEPS> (&x)[2], RowPlanes<STEPS>& planes,
                                           uint32_t (&words)[2]) {
  uint32_t largest[2], small[2] = {};
  int exponent[2];
  Extremes extremes;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    largest[h] = largest_magnitude(x[h]);
    exponent[h] = row_exponent<Fp16x3>(largest[h]);
    const float factor = power_of_two(-exponent[h]);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const QuadPlanes<Fp16x3> split(scaled(x[h][s], factor));
      planes.hi[h][s][0] = split.xy[0];
      planes.hi[h][s][1] = split.zw[0];
      planes.lo[h][s][0] = split.xy[1];
      planes.lo[h][s][1] = split.zw[1];
      extremes.add(split.xy[0]);
      extremes.add(split.zw[0]);
    }
  }
  if (__any_sync(~0u, extremes.small_or_zero())) {  // zeros are frequent, small ones are not
    bool some = false;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      some = some || smallest_magnitude(x[h]) < 2 * __float_as_uint(Fp16x3::kSmall * power_of_two(exponent[h])) - 1;
    if (__any_sync(~0u, some)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) small[h] = count_small(x[h], power_of_two(-exponent[h]));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) words[h] = row_word<Fp16x3>(largest[h], exponent[h], small[h]);
}

}  // namespace sgemm::split
