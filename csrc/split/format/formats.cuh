// The formats: a float32 as a sum of 16-bit floats.
//
// Every row of A and column of B is scaled by a power of two, so that its largest element comes near the format's upper
// end (row_scale.cuh).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

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

}  // namespace sgemm::split
