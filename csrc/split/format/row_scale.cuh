// RowScale: a row's scale and the guard's threshold, packed into 32 bits. A row here is a row of A or a column of B.
#pragma once
#include "../../gpu/ptx/min_max.cuh"
#include "../plan/sizes.h"
#include "formats.cuh"

namespace sgemm::split {

constexpr float kSumRounding = 1.01f;  // exceeds the rounding error of a sum of 2^13 magnitudes

// Returns the threshold for the other operand's small elements, from the sum of a scaled row's magnitudes.
template <class F>
__device__ __forceinline__ float sum_threshold(float sum) {
  return sum * (F::kSumThreshold * kSumRounding);
}

__device__ __forceinline__ float power_of_two(int exponent) {  // precondition: the result is a normal float
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kMinusInfinity = 0xff800000;
// Thresholds of special rows. A comparison with NaN fails, so that no element is certified.
constexpr uint32_t kInfRow = 0x7fd00000;       // NaN: a row that holds Inf
constexpr uint32_t kUncertified = 0x7fe00000;  // NaN: a row without Inf, whose elements no sum certifies
constexpr uint32_t kNanRow = 0x80000000;       // -0: a row that holds NaN, which needs no test

// The exponent of a row of zeros that is split on the fly: its factor is the largest there is.
constexpr int kNoScale = -126;

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & kMagnitude; }

// Returns the larger magnitude, or NaN if either argument is NaN.
__device__ __forceinline__ float larger_or_nan(float x, float y) { return hopper::max_or_nan(fabsf(x), fabsf(y)); }

// Returns 1 if x is small: it loses relative accuracy when scaled, and `scaled` may even be 0.
template <class F>
__device__ __forceinline__ uint32_t is_small(float x, float scaled) {
  return x != 0 && fabsf(scaled) < F::kSmall;
}

// Magnitudes of a thread's elements of a row, as bits, so that NaN is the largest. `smallest` is the smallest nonzero
// magnitude minus 1.
struct Magnitudes {
  uint32_t largest = 0, smallest = ~0u;

  __device__ __forceinline__ void take(float x) {
    largest = max(largest, magnitude(x));
    smallest = min(smallest, magnitude(x) - 1);
  }
  __device__ __forceinline__ void take(const float4& v) {
    take(v.x);
    take(v.y);
    take(v.z);
    take(v.w);
  }

  // Returns true if any element is small in a row that is divided by 2^exponent. This is rare, and only then are small
  // elements counted.
  template <class F>
  __device__ __forceinline__ bool some_small(int exponent) const {
    const uint32_t limit = __float_as_uint(F::kSmall * power_of_two(exponent));  // 0 on underflow: no element is small
    return smallest < max(limit, 1u) - 1;
  }
};

// Tests for a row's small elements, in a step that is divided by 2^exponent. Each test takes three instructions only,
// since the main loop itself counts these elements.
struct SmallElements {
  uint32_t limit;

  __device__ __forceinline__ explicit SmallElements(int exponent) {
    limit = 2 * max(__float_as_uint(Fp16x3::kSmall * power_of_two(exponent)), 1u) - 1;
  }

  // Returns the number to compare with `limit`: twice the magnitude's bits, less one, so that zero is large.
  __device__ __forceinline__ static uint32_t key(float x) { return 2 * __float_as_uint(x) - 1; }
  __device__ __forceinline__ uint32_t holds(float x) const { return key(x) < limit; }
  __device__ __forceinline__ uint32_t count(const float4& v) const {
    return holds(v.x) + holds(v.y) + holds(v.z) + holds(v.w);
  }
};

// Returns the exponent of the power of two that a row is divided by, from the bits of its largest magnitude. Rows of
// very small elements don't reach the format's upper end, because the factor must be a normal float. A row with Inf is
// recomputed, so that its scale doesn't matter. A row with NaN gives NaN, and gets a plain scale.
template <class F>
__device__ __forceinline__ int row_exponent(uint32_t largest) {
  if (largest > kInfinity) return 0;
  const int exponent = static_cast<int>(largest >> 23) - 127;
  return max(exponent, F::kTopExponent - 126) - F::kTopExponent;
}

// Packs a row's scale and threshold: the threshold's upper 24 bits, and below them the exponent plus 128. The lowest of
// the 24 bits is 0, and they are exact for up to 2^15 small elements. A row with Inf has a NaN threshold, which no
// element passes; a row with NaN has -0. A row of zeros has -Inf: its products are zero for any other operand.
template <class F>
__device__ __forceinline__ RowScale pack_row_scale(uint32_t largest, int exponent, uint32_t small) {
  uint32_t bits = __float_as_uint(F::kThreshold * static_cast<float>(small));
  if (largest >= kInfinity) bits = largest > kInfinity ? kNanRow : kInfRow;
  if (largest == 0) bits = kMinusInfinity;
  return (bits & 0xffffff00u) | static_cast<uint32_t>(exponent + 128);
}

__device__ __forceinline__ int exponent_of(RowScale row_scale) { return static_cast<int>(row_scale & 0xff) - 128; }
__device__ __forceinline__ float threshold_of(RowScale row_scale) { return __uint_as_float(row_scale & 0xffffff00u); }
__device__ __forceinline__ float factor_of(RowScale row_scale) {
  return __uint_as_float((row_scale << 23) - (1u << 23));
}

// Replaces the threshold of a packed row, rounded up. Its lowest bit is 0, because factor_of() would read it as a
// sign.
__device__ __forceinline__ RowScale with_threshold(RowScale row_scale, float threshold) {
  return ((__float_as_uint(threshold) + 0x1ffu) & 0xfffffe00u) | (row_scale & 0xff);
}

// Packs a row whose scale was found on the fly. `small`: number of small elements, each weighted by its step's scale
// over the coarsest scale; Inf if the row holds Inf, NaN if it holds NaN.
__device__ __forceinline__ RowScale pack_found_scale(bool nonzero, int exponent, float small) {
  if (isnan(small)) return kNanRow | 128;
  if (isinf(small)) return pack_row_scale<Fp16x3>(kInfinity, 0, 0);
  const RowScale row_scale = pack_row_scale<Fp16x3>(nonzero, exponent, 0);
  return nonzero ? with_threshold(row_scale, Fp16x3::kThreshold * small) : row_scale;
}

// Scales and thresholds of a tile's rows and columns.
using TileScales = RowScale[2][kTile];

__device__ __forceinline__ uint16_t sum_bits(float sum) {  // rounded up
  return static_cast<uint16_t>(min(__float_as_uint(sum) + 0xffffu, kInfinity) >> 16);
}

__device__ __forceinline__ bool is_inf_row(RowScale row_scale) { return (row_scale & 0xffffff00u) == kInfRow; }
__device__ __forceinline__ bool is_nan_row(RowScale row_scale) { return (row_scale & 0xffffff00u) == kNanRow; }
__device__ __forceinline__ bool is_finite_row(RowScale row_scale) {
  return !is_inf_row(row_scale) && !is_nan_row(row_scale);
}

// Returns true if a sum is NaN because its row or column holds NaN. If neither threshold is NaN, which would refuse
// every sum, then a sum is either finite or such a NaN.
__device__ __forceinline__ bool is_nan_of_operands(float sum, RowScale left, RowScale right) {
  return isnan(sum) && !isnan(threshold_of(left) + threshold_of(right));
}

// Returns true if a row has a plain scale. The product of two plain scales and a plain alpha is a normal float, which
// has all of alpha's bits. A sum of up to 2^13 terms below 2^30, multiplied by that, stays finite. A row of zeros, with
// the threshold -Inf, counts as plain, because any scale keeps zeros.
constexpr int kLeastPlain = -59, kMostPlain = 36;
__device__ __forceinline__ bool has_plain_scale(RowScale row_scale) {
  return static_cast<int>(row_scale) < 0 || (row_scale & 0xff) - (128 + kLeastPlain) <= kMostPlain - kLeastPlain;
}
// Returns true if a row has a plain scale and no threshold above 0: its elements need no test.
__device__ __forceinline__ bool is_plain(RowScale row_scale) {
  return static_cast<int>(row_scale) < 0 || row_scale - (128 + kLeastPlain) <= kMostPlain - kLeastPlain;
}
inline bool is_plain_alpha(float alpha) {
  alpha = alpha < 0 ? -alpha : alpha;
  return alpha == 0 || (alpha >= 0x1p-8f && alpha <= 0x1p8f);
}

// Returns sum * 2^exponent for any exponent, by three factors that are normal floats. If the result is subnormal, the
// value before the last factor is not, so that the result is rounded once.
__device__ __forceinline__ float unscaled(float sum, int exponent) {
  exponent = max(-3 * 126, min(exponent, 3 * 126));
  const int third = exponent / 3;
  return sum * power_of_two(third) * power_of_two(third) * power_of_two(exponent - 2 * third);
}

// Returns true if an overflowing result would also overflow when added up in order of k. If the sum in order does not
// overflow, its partial sums are below 2^128 and its roundings at most 2^104 each: it is off by less than 2^128 in all.
__device__ __forceinline__ bool surely_overflows(float sum, int exponent) {
  return fabsf(unscaled(sum, exponent - 4)) >= 0x1p126f;
}

// Returns true if `sum` = x + c may differ from the sum in order of k: it isn't finite, and a part may have overflowed.
// `c` is the sum of earlier pieces of k, in order. So a NaN of c is the result, and so is Inf if x is finite.
__device__ __forceinline__ bool may_differ_in_order(float sum, float x, float c) {
  return !isfinite(sum) && !isnan(c) && !(isinf(c) && isfinite(x));
}

}  // namespace sgemm::split
