// Planes: the 16-bit parts of four neighbours, and their place in a panel in wgmma's order.
#pragma once
#include "../plan/sizes.h"
#include "formats.cuh"

namespace sgemm::split {

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

}  // namespace sgemm::split
