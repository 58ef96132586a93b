// How a float32 is written as a sum of 16-bit floats, and what the guard has to know of the sum's error.
//
// Every row of A and column of B is scaled by a power of two, so that its largest element comes near the format's upper
// end. A row's word holds that scale and the guard's threshold.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../plan/plan.h"

namespace sgemm::split {

// x = hi + lo / 2^11, three products: hi hi + (hi lo + lo hi) / 2^11.
//
// An element v of a scaled row is off by at most max(2^-23 |v|, 2^-36): lo is a multiple of 2^-24. Only small elements,
// 0 < |v| < 2^-13, lose relative accuracy. One of them, times an element w of the other operand, |w| < 2^15, is off by
// 2^-36 |w| for that and by as much again for lo lo, which is left out, together at most 3/2 2^-21. So with na small
// ones in a row of A and nb in a column of B, a product of at least 4 (na + nb) is off by at most 3 2^-24 of itself.
struct Fp16x3 {
  using Element = __half;
  static constexpr int kTopExponent = 14;  // a scaled row's largest element is in [2^14, 2^15)
  static constexpr float kLimit = 0x1p15f;
  static constexpr float kSmall = 0x1p-13f;            // below it an element loses relative accuracy
  static constexpr float kThreshold = 4;               // for each small element
  static constexpr float kSumThreshold = 0x1.56p-13f;  // for the magnitudes that small elements meet: 4/3 2^-13
  static constexpr float kCorrection = 0x1p-11f;

  // Two neighbours; plane 0 is hi, plane 1 is lo.
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
// Three bfloat16 hold a float32 whole, down to bfloat16's smallest subnormal 2^-133. But the product of two elements
// may be below what a float32 sum holds: that of two elements of 2^-50 and more is at least 2^-100, of which the sum
// keeps all bits. Smaller elements count as small. Each is off by up to 2^-134, times another's 2^41, and by a few
// 2^-149: with na of them in a row of A and nb in a column of B, a product of at least (na + nb) 2^-70 is off by at
// most 2^-23 of itself.
struct Bf16x6 {
  using Element = __nv_bfloat16;
  static constexpr int kTopExponent = 40;
  static constexpr float kLimit = 0x1p41f;
  static constexpr float kSmall = 0x1p-50f;
  static constexpr float kThreshold = 0x1p-70f;
  static constexpr float kSumThreshold = 0x1.1p-111f;
  static constexpr float kCorrection = 1;

  // Planes 0, 1 and 2 are hi, mid and lo; nothing reads plane 3.
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

constexpr float kSumRounding = 1.01f;  // more than a sum of 2^13 magnitudes may be off by

// The threshold for the other operand's small elements, from the sum of a scaled row's magnitudes.
template <class F>
__device__ __forceinline__ float sum_threshold(float sum) {
  return sum * (F::kSumThreshold * kSumRounding);
}

__device__ __forceinline__ float power_of_two(int exponent) {  // of a normal float
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kMinusInfinity = 0xff800000;
constexpr uint32_t kInfRow = 0x7fd00000;       // the threshold of a row that holds Inf: NaN, which no element passes
constexpr uint32_t kUncertified = 0x7fe00000;  // the same of one without Inf, whose elements no sum certifies
constexpr uint32_t kNanRow = 0x80000000;       // -0: a row with NaN, which asks for nothing

// Where scales are found while the product runs: that of a row of zeros, whose factor is the largest there is.
constexpr int kNoScale = -126;

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & kMagnitude; }

// The larger magnitude; NaN, if there is one.
__device__ __forceinline__ float larger_or_nan(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(fabsf(x)), "f"(fabsf(y)));
  return result;
}

// Whether x loses accuracy by its scale, which may leave nothing of it.
template <class F>
__device__ __forceinline__ uint32_t is_small(float x, float scaled) {
  return x != 0 && fabsf(scaled) < F::kSmall;
}

// Magnitudes of a thread's elements of a row, as bits, in which a NaN is larger than everything. `smallest` is of those
// that aren't zero, less one.
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

  // Whether one loses accuracy in a row that is divided by 2^exponent: seldom, so that only then they are counted.
  template <class F>
  __device__ __forceinline__ bool some_small(int exponent) const {
    const uint32_t limit = __float_as_uint(F::kSmall * power_of_two(exponent));  // 0 if it underflows: none is small
    return smallest < max(limit, 1u) - 1;
  }
};

// Four scaled elements' planes, two elements per word.
template <class F>
struct QuadPlanes {
  static constexpr int kPlanes = kPairs<F> == 1 ? 2 : 3;
  uint32_t xy[kPlanes], zw[kPlanes];

  __device__ __forceinline__ explicit QuadPlanes(const float4& v) {
    F::split(v.x, v.y, xy);
    F::split(v.z, v.w, zw);
  }

  // Not 0 if hi alone doesn't hold the elements.
  __device__ __forceinline__ uint32_t lower() const {
    uint32_t bits = xy[1] | zw[1];
    if constexpr (kPlanes == 3) bits |= xy[2] | zw[2];
    return bits;
  }

  // 8 bytes per plane, from `to` on: a pair's planes are planes_apart bytes apart, pairs kPanelBytes.
  __device__ __forceinline__ void store(char* to, int planes_apart) const {
#pragma unroll
    for (int i = 0; i < kPlanes; ++i)
      *reinterpret_cast<uint2*>(to + i % 2 * planes_apart + i / 2 * kPanelBytes) = make_uint2(xy[i], zw[i]);
  }

  // The same, the quad's second pair `apart` bytes from the first.
  __device__ __forceinline__ void store_pairs(char* first, int planes_apart, int apart) const {
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) {
      char* const to = first + i % 2 * planes_apart + i / 2 * kPanelBytes;
      *reinterpret_cast<uint32_t*>(to) = xy[i];
      *reinterpret_cast<uint32_t*>(to + apart) = zw[i];
    }
  }
};

// The smallest magnitude of a thread's scaled elements, rounded to float16: of even and of odd ones, zeros too.
struct SmallestHalves {
  __half2 smallest = __float2half2_rn(Fp16x3::kLimit);

  __device__ __forceinline__ void add(uint32_t pair) {
    smallest = __hmin2(smallest, __habs2(*reinterpret_cast<const __half2*>(&pair)));
  }
  __device__ __forceinline__ bool small_or_zero() const {
    return fminf(__low2float(smallest), __high2float(smallest)) < Fp16x3::kSmall;
  }
};

// Where four neighbours in a panel lie, from row `row` and `k` on: bytes from the beginning of their step's first
// plane, whose rows from 64 on lie half_apart behind the others. Panels are swizzled as wgmma wants them. K-major: row
// r holds 64 bytes of a plane, 32 of k; its 16-byte chunk c lies at chunk c ^ (r / 2 % 4). MN-major: for each plane one
// or two blocks of 64 rows, in which each of k holds 64 rows in 128 bytes, chunks swizzled by k % 8.
template <bool ALONG_MN>
__device__ __forceinline__ int place_in_panel(int row, int k, int half_apart = kHalfPlaneBytes) {
  const int half = row / 64 * half_apart;
  if (ALONG_MN) return half + k * 128 + ((row % 64 / 8 ^ k % 8) << 4) + row / 4 % 2 * 8;
  return half + row % 64 * 64 + ((k / 8 ^ row / 2 % 4) << 4) + k % 8 * 2;
}

// The exponent that a row is divided by, from the bits of its largest magnitude. Rows of very small elements don't come
// up to the top: the factor must be a float. A row with Inf is redone, whatever its scale; products of a row with NaN
// are NaN, and its scale is a plain one.
template <class F>
__device__ __forceinline__ int row_exponent(uint32_t largest) {
  if (largest > kInfinity) return 0;
  const int exponent = static_cast<int>(largest >> 23) - 127;
  return max(exponent, F::kTopExponent - 126) - F::kTopExponent;
}

// A row's scale and threshold in one word: the threshold's upper 24 bits, the lowest of them 0 (exact for up to 2^15
// small elements), the exponent below them. The threshold of a row with Inf is NaN, that no element passes; that of a
// row with NaN is -0. A row of zeros has -Inf: its products are zero, whatever else is small.
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

// The same word with another threshold, rounded up. Its lowest bit is 0, for word_scale() would take it for a sign.
__device__ __forceinline__ uint32_t with_threshold(uint32_t word, float threshold) {
  return ((__float_as_uint(threshold) + 0x1ffu) & 0xfffffe00u) | (word & 0xff);
}

// Where scales are found while the product runs, a row with small elements also tells the step of k that set its scale
// (guard.cuh). It takes the place of the lower bits of the threshold, which is rounded up, but for that lowest one.
__device__ __forceinline__ uint32_t with_step(uint32_t word, uint32_t step) {
  static_assert(kMaxSlice / kStep <= 256);
  if (!(word_threshold(word) > 0)) return word;
  return ((word + 0x1ff00u) & 0xfffe0000u) | step << 9 | (word & 0xff);
}
// Its word: `small` counts small elements, each as much as its step's scale is of the coarsest, which `step` set. It is
// infinite for a row with Inf, and NaN for one with NaN.
__device__ __forceinline__ uint32_t found_word(bool nonzero, int exponent, float small, int step) {
  if (isnan(small)) return kNanRow | 128;
  if (isinf(small)) return row_word<Fp16x3>(kInfinity, 0, 0);
  const uint32_t word = row_word<Fp16x3>(nonzero, exponent, 0);
  return nonzero ? with_step(with_threshold(word, Fp16x3::kThreshold * small), step) : word;
}
__device__ __forceinline__ uint32_t word_step(uint32_t word) { return word >> 9 & 0xff; }

// Parts of such a row's sums are added up as if it had no scale. They are multiples of 2^-99, which lose nothing down
// to the finest; below, each of up to 2^8 parts is off by 2^-150: less than 2^-30 of this threshold.
constexpr int kFinestSum = -50;
__device__ __forceinline__ float lost_in_parts(int exponent) { return power_of_two(-112 - exponent); }

// And what the magnitudes of such a row, of A, come to when it is scaled, at most: the upper half of a float. A tile's
// lie where one of full width has the words of its last columns.
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

// Whether a sum is NaN for a NaN in its row or column: where these don't fail every sum, one is finite or that.
__device__ __forceinline__ bool is_nan_of_operands(float sum, uint32_t left, uint32_t right) {
  return isnan(sum) && !isnan(word_threshold(left) + word_threshold(right));
}

// Whether the product of two such scales and of a plain alpha is a normal float, so that it has all of alpha's bits,
// and what is multiplied by it, of up to 2^13 terms below 2^30, stays finite. Zeros, with the threshold -Inf, stay
// zeros by any scale.
constexpr int kLeastPlain = -59, kMostPlain = 36;
__device__ __forceinline__ bool has_plain_scale(uint32_t word) {
  return static_cast<int>(word) < 0 || (word & 0xff) - (128 + kLeastPlain) <= kMostPlain - kLeastPlain;
}
// Whether a row has a plain scale and no threshold above 0: then its elements need no test.
__device__ __forceinline__ bool is_plain(uint32_t word) {
  return static_cast<int>(word) < 0 || word - (128 + kLeastPlain) <= kMostPlain - kLeastPlain;
}
inline bool is_plain_alpha(float alpha) {
  alpha = alpha < 0 ? -alpha : alpha;
  return alpha == 0 || (alpha >= 0x1p-8f && alpha <= 0x1p8f);
}

// A scaled sum times 2^exponent, whatever the exponent. In three steps of powers of two that are floats: where the
// result is subnormal, what precedes the last one is not, so it is rounded once.
__device__ __forceinline__ float unscaled(float sum, int exponent) {
  exponent = max(-3 * 126, min(exponent, 3 * 126));
  const int third = exponent / 3;
  return sum * power_of_two(third) * power_of_two(third) * power_of_two(exponent - 2 * third);
}

// Whether a result that overflows would overflow as well if it were added up in order of k. No partial sum of one that
// doesn't is 2^128 or more, so its roundings are at most 2^104 each, and it is off by less than 2^128 in all.
__device__ __forceinline__ bool surely_overflows(float sum, int exponent) {
  return fabsf(unscaled(sum, exponent - 4)) >= 0x1p126f;
}

// Whether x + C, where C is the sum of earlier pieces of k, may be another than the sum in order of k: it isn't finite,
// and a part may have overflowed. C is what that sum was so far: NaN stays, and so does Inf where x is finite.
__device__ __forceinline__ bool may_differ_in_order(float sum, float x, float c) {
  return !isfinite(sum) && !isnan(c) && !(isinf(c) && isfinite(x));
}

}  // namespace sgemm::split
