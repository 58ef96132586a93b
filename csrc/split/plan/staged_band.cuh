// Sums on their way through shared memory: a warp's band, 16 rows x 32 columns.
#pragma once
#include "tile_shape.cuh"

namespace sgemm::split {

constexpr int kStagedFloats = 16 * 32;  // of a warp: a band
constexpr int kStagingBytes = kConsumers / 32 * kStagedFloats * static_cast<int>(sizeof(float));

// Quad q of row r begins here. Eight lanes' quads of neighbours, of whichever row, lie in different banks, and so do
// the accumulators' pairs.
__device__ __forceinline__ uint32_t place_in_band(uint32_t r, uint32_t q) { return r * 32 + ((q ^ (r % 4 * 2)) << 2); }

// A thread's neighbours in the i-th eight columns of a band, and those eight rows below.
__device__ __forceinline__ void stage_pairs(float2 x, float2 below, int i, float* staging, uint32_t lane) {
  const uint32_t place = place_in_band(lane / 4, i * 2 + lane % 4 / 2) + lane % 2 * 2;
  *reinterpret_cast<float2*>(staging + place) = x;
  *reinterpret_cast<float2*>(staging + place + 8 * 32) = below;
}

// A band that the compiler knows.
template <int N>
__device__ __forceinline__ void stage_band(const float (&sum)[N], int band, float* staging, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* four = &sum[band * 16 + i * 4];
    stage_pairs({four[0], four[1]}, {four[2], four[3]}, i, staging, lane);
  }
}
// One that it doesn't: an index that is no constant would move the sums to memory.
template <class Shape>
__device__ __forceinline__ void stage_any_band(const float (&sum)[Shape::kSums], int band, float* staging, int lane) {
  if (band == 0) return stage_band(sum, 0, staging, lane);
  if (band == 1) return stage_band(sum, 1, staging, lane);
  if constexpr (Shape::kBands == 4) {
    if (band == 2) return stage_band(sum, 2, staging, lane);
    stage_band(sum, 3, staging, lane);
  }
}

}  // namespace sgemm::split
