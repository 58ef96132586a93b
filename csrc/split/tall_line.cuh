// How a lane of split_fp16x3_tall's warps has its part of rows of A and of columns of B, and splits it.
#pragma once
#include "format.cuh"
#include "tall.h"

namespace sgemm::split {

// Of 16 of k, or of 16 columns, the place of the e-th of a lane's four, by how they are read or stored.
template <class How>
__device__ __forceinline__ int place_of(How how, int t, int e) {
  return how == How::kQuads ? 4 * t + e : 4 * e + t;
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

// Whether one of the lane's elements loses accuracy by their line's scale.
template <int STEPS>
__device__ __forceinline__ bool some_small(const LineElements<STEPS>& x, int exponent) {
  Magnitudes own;
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int e = 0; e < 4; ++e) own.take(x[s][e]);
  return own.some_small<Fp16x3>(exponent);
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
    const bool some = some_small(x[0], exponent[0]) || some_small(x[1], exponent[1]);
    if (__any_sync(~0u, some)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) small[h] = count_small(x[h], power_of_two(-exponent[h]));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) words[h] = row_word<Fp16x3>(largest[h], exponent[h], small[h]);
}

}  // namespace sgemm::split
