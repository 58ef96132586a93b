// One element of a product in float32.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace sgemm::split {

// Its sum by a warp, the same in all lanes. A sum that overflows is added up in the order of k, for another order may
// overflow where that one doesn't; with Inf or NaN in the operands, products with these alone decide.
static __device__ __noinline__ float dot_product(const float* a, int64_t a_step, const float* b, int64_t b_step,
                                                 int64_t depth) {
  const int lane = threadIdx.x % 32;
  const auto add_up = [](float x) {
    for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
  };
  constexpr int kAtOnce = 8;  // reads: one after the other, each would wait for memory
  float sum = 0, of_specials = 0;  // finite, and 0, unless there are Inf or NaN
#pragma unroll 1
  for (int64_t q0 = 0; q0 < depth; q0 += 32 * kAtOnce) {
    const int64_t q = q0 + lane;
    float x[kAtOnce], y[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool inside = q + 32 * i < depth;
      x[i] = inside ? a[(q + 32 * i) * a_step] : 0.0f;
      y[i] = inside ? b[(q + 32 * i) * b_step] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      sum = fmaf(x[i], y[i], sum);
      if (!isfinite(x[i]) || !isfinite(y[i])) of_specials += x[i] * y[i];
    }
    // No product changes a NaN: of a row of Inf, its first products most often decide.
    if (__any_sync(~0u, isnan(of_specials))) return NAN;
  }
  if (__any_sync(~0u, !isfinite(of_specials))) return add_up(of_specials);
  sum = add_up(sum);
  if (isfinite(sum)) return sum;
  sum = 0;
#pragma unroll 1
  for (int64_t q = 0; q < depth; q += 32) {
    const bool inside = q + lane < depth;
    const float x = inside ? a[(q + lane) * a_step] : 0, y = inside ? b[(q + lane) * b_step] : 0;
    for (int i = 0; i < 32; ++i) sum = fmaf(__shfl_sync(~0u, x, i), __shfl_sync(~0u, y, i), sum);
  }
  return sum;
}

}  // namespace sgemm::split
