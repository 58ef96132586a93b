// Elements of a product in float32.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "../problem/elements.h"

namespace sgemm::split {

// What a part of their products comes to. Those with Inf or NaN are apart, for they alone decide.
struct DotSums {
  float sum, of_specials;  // the latter is finite, and 0, unless there are some
};

// Elements that a lane reads of either operand at once, for one after the other, each would wait for memory; more of
// them are more instructions, which are in no cache either.
constexpr int kDotReads = 16;

// Of k from `begin` to `end`, by a warp, whose lanes read neighbours along k; the same in all lanes.
static __device__ __noinline__ DotSums add_products(ElementPointer a, int64_t a_step, ElementPointer b, int64_t b_step,
                                                    int64_t begin, int64_t end) {
  const int lane = threadIdx.x % 32;
  const bool float32 = a.elements == ElementType::kFloat32 && b.elements == ElementType::kFloat32;
  const auto add_up = [](float x) {
    for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
  };
  DotSums of_lane = {0, 0};
  a = a + (begin + lane) * a_step;
  b = b + (begin + lane) * b_step;
#pragma unroll 1
  for (int64_t left = end - begin; left > 0; left -= 32 * kDotReads) {
    const int own = static_cast<int>(min(left, int64_t{32 * kDotReads})) - lane;
    float x[kDotReads], y[kDotReads];
    const auto read = [&](float(&to)[kDotReads], const ElementPointer& from, int64_t step) {
      read_elements(
          to, from, [&](int i) { return 32 * i * step; }, [&](int i) { return 32 * i < own; });
    };
    if (float32) {  // no branch lies between the two, at which the second would wait for the first
      read(x, {a.data}, a_step);
      read(y, {b.data}, b_step);
    } else {
      read(x, a, a_step);
      read(y, b, b_step);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kDotReads; ++i) sum = fmaf(x[i], y[i], sum);
    of_lane.sum += sum;
    a = a + 32 * kDotReads * a_step;
    b = b + 32 * kDotReads * b_step;
    if (!__any_sync(~0u, !isfinite(sum))) continue;
#pragma unroll
    for (int i = 0; i < kDotReads; ++i)
      if (!isfinite(x[i]) || !isfinite(y[i])) of_lane.of_specials += x[i] * y[i];
    // No product changes a NaN: of a row of Inf, its first products most often decide.
    if (__any_sync(~0u, isnan(of_lane.of_specials))) return {NAN, NAN};
  }
  return {add_up(of_lane.sum), add_up(of_lane.of_specials)};
}

// The element in the order of k, by a warp; the same in all lanes.
static __device__ __noinline__ float add_in_order(ElementPointer a, int64_t a_step, ElementPointer b, int64_t b_step,
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

// The element, by a warp, from the sums of all of k. One that overflows is added up in the order of k, for another
// order may overflow where that one doesn't.
__device__ __forceinline__ float whole_product(const ElementPointer& a, int64_t a_step, const ElementPointer& b,
                                               int64_t b_step, int64_t depth, const DotSums& sums) {
  if (!isfinite(sums.of_specials)) return sums.of_specials;
  return isfinite(sums.sum) ? sums.sum : add_in_order(a, a_step, b, b_step, depth);
}

// Both, by one warp.
__device__ __forceinline__ float dot_product(const ElementPointer& a, int64_t a_step, const ElementPointer& b,
                                             int64_t b_step, int64_t depth) {
  return whole_product(a, a_step, b, b_step, depth, add_products(a, a_step, b, b_step, 0, depth));
}

}  // namespace sgemm::split
