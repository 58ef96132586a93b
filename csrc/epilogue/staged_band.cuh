// Stages a warp's band of accumulators, 16 rows x 32 columns, in shared memory.
#pragma once
#include "../gpu/warpgroups.cuh"

namespace sgemm {

constexpr int kStagedFloats = 16 * 32;  // floats per warp: one band
constexpr int kStagingBytes = kConsumers / 32 * kStagedFloats * static_cast<int>(sizeof(float));

// Returns the index of the first float of quad q in row r. The order avoids bank conflicts: eight lanes' neighbouring
// quads of any row lie in different banks, and so do the accumulators' pairs.
__device__ __forceinline__ uint32_t place_in_band(uint32_t r, uint32_t q) { return r * 32 + ((q ^ (r % 4 * 2)) << 2); }

// Writes a thread's two neighbours in the i-th eight columns of a band, and the two that are eight rows below.
__device__ __forceinline__ void stage_pairs(float2 x, float2 below, int i, float* staging, uint32_t lane) {
  const uint32_t place = place_in_band(lane / 4, i * 2 + lane % 4 / 2) + lane % 2 * 2;
  *reinterpret_cast<float2*>(staging + place) = x;
  *reinterpret_cast<float2*>(staging + place + 8 * 32) = below;
}

// Stages a band whose number is a constant after unrolling.
template <int N>
__device__ __forceinline__ void stage_band(const float (&sum)[N], int band, float* staging, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* four = &sum[band * 16 + i * 4];
    stage_pairs({four[0], four[1]}, {four[2], four[3]}, i, staging, lane);
  }
}

// Stages a band whose number is a runtime value. A runtime index would move the accumulators to local memory.
template <int N>
__device__ __forceinline__ void stage_any_band(const float (&sum)[N], int band, float* staging, int lane) {
  if (band == 0) return stage_band(sum, 0, staging, lane);
  if constexpr (N >= 32)
    if (band == 1) return stage_band(sum, 1, staging, lane);
  if constexpr (N == 64) {
    if (band == 2) return stage_band(sum, 2, staging, lane);
    stage_band(sum, 3, staging, lane);
  }
}

}  // namespace sgemm
