// The formats: a float32 as a sum of 16-bit floats, and the packed scale and threshold of a row.
//
// Every row of A and column of B is scaled by a power of two, so that its largest element comes near the format's upper
// end. A row here is a row of A or a column of B. Its `word` packs that scale and the guard's threshold into 32 bits.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../plan/plan.h"

namespace sgemm::split {

// x = hi + lo / 2^11, three products: hi hi + (hi lo + lo hi) / 2^11.
//
// An element v of a scaled row is off by at most max(2^-23 |v|, 2^-36), because lo is a multiple of 2^-24. Only small
// elements, 0 < |v| < 2^-13, lose relative accuracy. A small element is multiplied by an element w of the other
// operand, |w| < 2^15. That product is off by 2^-36 |w|, and by at most as much again because lo * lo is left out:
// together at most 3/2 2^-21. Let a row of A have na small elements, and a column of B nb. Then a sum of magnitude
// 4 (na + nb) or more is off by at most 3 2^-24 of itself.
struct Fp16x3 {
  using Element = __half;
  static constexpr int kTopExponent = 14;  // a scaled row's largest element is in [2^14, 2^15)
  static constexpr float kLimit = 0x1p15f;
  static constexpr float kSmall = 0x1p-13f;            // smaller elements lose relative accuracy
  static constexpr float kThreshold = 4;               // threshold per small element
  static constexpr float kSumThreshold = 0x1.56p-13f;  // per unit of the magnitudes that small elements meet: 4/3 2^-13
  static constexpr float kCorrection = 0x1p-11f;       // factor of the corrections' sum

  // Splits two neighbours. Plane 0 is hi, plane 1 is lo.
  __device__ static __forceinline__ void split(float x, float y, uint32_t (&plane)[2]) {
    const __half2 hi = __floats2half2_rn(x, y);
    const float2 back = __half22float2(hi);
    const __half2 lo = __floats2half2_rn((x - back.x) * 0x1p11f, (y - back.y) * 0x1p11f);
    plane[0] = *reinterpret_cast<const uint32_t*>(&hi);
    plane[1] = *reinterpret_cast<const uint32_t*>(&lo);
  }
};

// x = hi + mid + lo, six products: hi hi + (hi mid + mid hi + hi lo + mid mid + lo hi).
//
// Three bfloat16 hold all of a float32, down to bfloat16's smallest subnormal 2^-133. But the product of two elements
// may be too small for a float32 sum. If both elements are at least 2^-50, their product is at least 2^-100, and the
// sum keeps all of its bits. Smaller elements count as small. The product of a small element is off by up to 2^-134,
// times the other element's 2^41, and by a few 2^-149. Let a row of A have na small elements, and a column of B nb.
// Then a sum of magnitude (na + nb) 2^-70 or more is off by at most 2^-23 of itself.
struct Bf16x6 {
  using Element = __nv_bfloat16;
  static constexpr int kTopExponent = 40;
  static constexpr float kLimit = 0x1p41f;
  static constexpr float kSmall = 0x1p-50f;
  static constexpr float kThreshold = 0x1p-70f;
  static constexpr float kSumThreshold = 0x1.1p-111f;
  static constexpr float kCorrection = 1;

  // Splits two neighbours. Planes 0, 1 and 2 are hi, mid and lo; nothing reads plane 3.
  __device__ static __forceinline__ void split(float x, float y, uint32_t (&plane)[3]) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const __nv_bfloat162 part = __floats2bfloat162_rn(x, y);
      const float2 back = __bfloat1622float2(part);
      x -= back.x;
      y -= back.y;
      plane[i] = *reinterpret_cast<const uint32_t*>(&part);
    }
  }
};

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
__device__ __forceinline__ float larger_or_nan(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(fabsf(x)), "f"(fabsf(y)));
  return result;
}

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

// Planes of four scaled elements, two elements per uint32.
template <class F>
struct QuadPlanes {
  static constexpr int kPlanes = kPairs<F> == 1 ? 2 : 3;
  uint32_t xy[kPlanes], zw[kPlanes];

  __device__ __forceinline__ explicit QuadPlanes(const float4& v) {
    F::split(v.x, v.y, xy);
    F::split(v.z, v.w, zw);
  }

  // Returns 0 if hi alone holds the elements exactly.
  __device__ __forceinline__ uint32_t lower() const {
    uint32_t bits = xy[1] | zw[1];
    if constexpr (kPlanes == 3) bits |= xy[2] | zw[2];
    return bits;
  }

  // Stores 8 bytes per plane, from `to` on. A pair's planes are planes_apart bytes apart, pairs kPanelBytes.
  __device__ __forceinline__ void store(char* to, int planes_apart) const {
#pragma unroll
    for (int i = 0; i < kPlanes; ++i)
      *reinterpret_cast<uint2*>(to + i % 2 * planes_apart + i / 2 * kPanelBytes) = make_uint2(xy[i], zw[i]);
  }

  // Stores the quad's first two elements at `first`, and its last two `apart` bytes from there.
  __device__ __forceinline__ void store_pairs(char* first, int planes_apart, int apart) const {
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) {
      char* const to = first + i % 2 * planes_apart + i / 2 * kPanelBytes;
      *reinterpret_cast<uint32_t*>(to) = xy[i];
      *reinterpret_cast<uint32_t*>(to + apart) = zw[i];
    }
  }
};

// The smallest magnitude of a thread's scaled elements, zeros included, rounded to float16: for even and odd elements
// separately.
struct SmallestHalves {
  __half2 smallest = __float2half2_rn(Fp16x3::kLimit);

  __device__ __forceinline__ void add(uint32_t pair) {
    smallest = __hmin2(smallest, __habs2(*reinterpret_cast<const __half2*>(&pair)));
  }
  __device__ __forceinline__ bool small_or_zero() const {
    return fminf(__low2float(smallest), __high2float(smallest)) < Fp16x3::kSmall;
  }
};

// Returns where four neighbours from (`row`, `k`) on lie in a panel, in bytes from the start of their step's first
// plane. Rows from 64 on lie half_apart bytes behind rows 0 to 63. Panels have wgmma's swizzle:
//
//   K-major:   row r holds 64 bytes of a plane, 32 of k. Its 16-byte chunk c lies at chunk c ^ (r / 2 % 4).
//   MN-major:  each plane has one or two blocks of 64 rows. Each k of a block holds 64 rows in 128 bytes, and 16-byte
//              chunks are swizzled by k % 8.
template <bool ALONG_MN>
__device__ __forceinline__ int place_in_panel(int row, int k, int half_apart = kHalfPlaneBytes) {
  const int half = row / 64 * half_apart;
  if (ALONG_MN) return half + k * 128 + ((row % 64 / 8 ^ k % 8) << 4) + row / 4 % 2 * 8;
  return half + row % 64 * 64 + ((k / 8 ^ row / 2 % 4) << 4) + k % 8 * 2;
}

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
__device__ __forceinline__ uint32_t row_word(uint32_t largest, int exponent, uint32_t small) {
  uint32_t bits = __float_as_uint(F::kThreshold * static_cast<float>(small));
  if (largest >= kInfinity) bits = largest > kInfinity ? kNanRow : kInfRow;
  if (largest == 0) bits = kMinusInfinity;
  return (bits & 0xffffff00u) | static_cast<uint32_t>(exponent + 128);
}

__device__ __forceinline__ int word_exponent(uint32_t word) { return static_cast<int>(word & 0xff) - 128; }
__device__ __forceinline__ float word_threshold(uint32_t word) { return __uint_as_float(word & 0xffffff00u); }
__device__ __forceinline__ float word_scale(uint32_t word) { return __uint_as_float((word << 23) - (1u << 23)); }

// Replaces the threshold of a packed row, rounded up. Its lowest bit is 0, because word_scale() would read it as a
// sign.
__device__ __forceinline__ uint32_t with_threshold(uint32_t word, float threshold) {
  return ((__float_as_uint(threshold) + 0x1ffu) & 0xfffffe00u) | (word & 0xff);
}

// Packs a row that was split on the fly. If it has small elements, the guard needs the step of k that set its scale
// (guard.cuh). The step replaces lower bits of the threshold, which is rounded up; the threshold's lowest bit stays 0.
__device__ __forceinline__ uint32_t with_step(uint32_t word, uint32_t step) {
  static_assert(kMaxSlice / kStep <= 256);
  if (!(word_threshold(word) > 0)) return word;
  return ((word + 0x1ff00u) & 0xfffe0000u) | step << 9 | (word & 0xff);
}
// Packs a row whose scale was found on the fly. `small`: number of small elements, each weighted by its step's scale
// over the coarsest scale; Inf if the row holds Inf, NaN if it holds NaN. `step`: the step that set the coarsest scale.
__device__ __forceinline__ uint32_t found_word(bool nonzero, int exponent, float small, int step) {
  if (isnan(small)) return kNanRow | 128;
  if (isinf(small)) return row_word<Fp16x3>(kInfinity, 0, 0);
  const uint32_t word = row_word<Fp16x3>(nonzero, exponent, 0);
  return nonzero ? with_step(with_threshold(word, Fp16x3::kThreshold * small), step) : word;
}
__device__ __forceinline__ uint32_t word_step(uint32_t word) { return word >> 9 & 0xff; }

// If blocks share a tile, the parts of such a row's sums are added up without the row's scale. Scaled sums are
// multiples of 2^-99, so that parts lose nothing if the exponent is at least kFinestSum. If the exponent is smaller,
// each of up to 2^8 parts is off by 2^-150: less than 2^-30 of the threshold lost_in_parts().
constexpr int kFinestSum = -50;
__device__ __forceinline__ float lost_in_parts(int exponent) { return power_of_two(-112 - exponent); }

// Upper bounds of the scaled magnitude sums of A's rows, if A is split on the fly: the upper half of a float each. A
// tile's bounds occupy the entries of the last 64 columns, which only a tile of full width has.
__device__ __forceinline__ uint16_t* row_sums(uint32_t (&words)[2][kTile]) {
  return reinterpret_cast<uint16_t*>(&words[1][kTile - kSumWords]);
}
__device__ __forceinline__ const uint16_t* row_sums(const uint32_t (&words)[2][kTile]) {
  return reinterpret_cast<const uint16_t*>(&words[1][kTile - kSumWords]);
}
__device__ __forceinline__ uint16_t sum_bits(float sum) {  // rounded up
  return static_cast<uint16_t>(min(__float_as_uint(sum) + 0xffffu, kInfinity) >> 16);
}
__device__ __forceinline__ float sum_of_bits(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

__device__ __forceinline__ bool is_inf_row(uint32_t word) { return (word & 0xffffff00u) == kInfRow; }
__device__ __forceinline__ bool is_nan_row(uint32_t word) { return (word & 0xffffff00u) == kNanRow; }
__device__ __forceinline__ bool is_finite_row(uint32_t word) { return !is_inf_row(word) && !is_nan_row(word); }

// Returns true if a sum is NaN because its row or column holds NaN. If neither threshold is NaN, which would refuse
// every sum, then a sum is either finite or such a NaN.
__device__ __forceinline__ bool is_nan_of_operands(float sum, uint32_t left, uint32_t right) {
  return isnan(sum) && !isnan(word_threshold(left) + word_threshold(right));
}

// Returns true if a row has a plain scale. The product of two plain scales and a plain alpha is a normal float, which
// has all of alpha's bits. A sum of up to 2^13 terms below 2^30, multiplied by that, stays finite. A row of zeros, with
// the threshold -Inf, counts as plain, because any scale keeps zeros.
constexpr int kLeastPlain = -59, kMostPlain = 36;
__device__ __forceinline__ bool has_plain_scale(uint32_t word) {
  return static_cast<int>(word) < 0 || (word & 0xff) - (128 + kLeastPlain) <= kMostPlain - kLeastPlain;
}
// Returns true if a row has a plain scale and no threshold above 0: its elements need no test.
__device__ __forceinline__ bool is_plain(uint32_t word) {
  return static_cast<int>(word) < 0 || word - (128 + kLeastPlain) <= kMostPlain - kLeastPlain;
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
