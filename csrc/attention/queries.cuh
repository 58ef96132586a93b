// A warp splits its 16 queries into planes, in the shared memory that holds them as float32.
#pragma once
#include "tiles.cuh"

namespace sgemm::attention {

// The scale of a row goes to shared.q_scales. The sign of the attention's scale goes into the planes.
template <class S>
__device__ __forceinline__ void split_queries(const Job& job, char* queries, int first_row, Shared<S>& shared) {
  constexpr int kBoxes = S::kDepth / 32, kRegionBytes = S::kQueries * 128;
  const int lane = hopper::opaque(threadIdx.x % 32), row = first_row + lane / 8;  // else ptxas keeps addresses
  float4 quads[kBoxes][4];                                                        // of rows row, row + 4, ...
  uint32_t largest[4] = {};
#pragma unroll
  for (int box = 0; box < kBoxes; ++box)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      quads[box][i] =
          *reinterpret_cast<const float4*>(queries + box * kRegionBytes + (row + 4 * i) * 128 + lane % 8 * 16);
      largest[i] = max(largest[i], largest_of(quads[box][i]));
    }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int d = 4; d; d /= 2) largest[i] = max(largest[i], __shfl_xor_sync(~0u, largest[i], d));
  __syncwarp();  // all have read
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float factor = copysignf(factor_of(largest[i]), job.p.scale);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box)
      store_quad(queries, S::kQueryPlane, S::kQueries, row + 4 * i, box * 8 + lane % 8, quads[box][i], factor);
    if (lane % 8 == 0) shared.q_scales[row + 4 * i] = scale_of(largest[i]);
  }
  hopper::fence_async_proxy();
  __syncwarp();
}

}  // namespace sgemm::attention
