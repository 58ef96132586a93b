// Sums of a tile whose k is shared by blocks through device memory.
//
// Idea:   where tiles are left over when every block has had equally many, several blocks share each of them. A block
//         writes its part of the sums, and the last to come adds them all up, in the order of k. Nobody waits for
//         anybody, so it doesn't matter which blocks run at once.
#pragma once
#include "tile_shape.cuh"

namespace sgemm::split {

// `shared` counts the tiles left over. Returns whether this block was the last: it has the whole sums.
template <int N>
__device__ __forceinline__ bool fix_up(const Job& job, int shared, int part, float (&sum)[N], uint32_t& last, int t) {
  constexpr int kFours = N / 4;  // float4s of a thread
  float4* const parts =
      job.part_sums + int64_t{shared} * job.parts * kFours * kConsumers + t;  // (parts, N / 4, threads)
  float4* const own = parts + part * kFours * kConsumers;
#pragma unroll
  for (int e = 0; e < N; e += 4) own[e / 4 * kConsumers] = make_float4(sum[e], sum[e + 1], sum[e + 2], sum[e + 3]);
  sync_consumers();
  if (t == 0) last = hopper::arrives_last(&job.arrived[shared], job.parts);
  sync_consumers();
  if (!last) return false;
#pragma unroll
  for (int e = 0; e < N; ++e) sum[e] = 0;
#pragma unroll 1
  for (int i = 0; i < job.parts; ++i) {
#pragma unroll
    for (int e = 0; e < N; e += 4) {
      const float4 add = __ldcg(&parts[(i * kFours + e / 4) * kConsumers]);
      sum[e] += add.x;
      sum[e + 1] += add.y;
      sum[e + 2] += add.z;
      sum[e + 3] += add.w;
    }
  }
  return true;
}

}  // namespace sgemm::split
