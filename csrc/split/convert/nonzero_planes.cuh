// Finds the panels whose lower planes are zero: hi alone holds their elements.
//
// Idea:   few float32 matrices use all 24 bits. If an element was bfloat16, float16 or a small integer before, hi holds
//         all of the scaled element. Each block of the convert kernel notes whether it wrote nonzero bits to lower
//         planes. If a panel has none, the product does not copy or multiply its lower planes. Sums have the same bits
//         without them.
#pragma once
#include "../format/planes.cuh"
#include "../plan/job.h"

namespace sgemm::split {

// Writes the block's flags of a panel. A whole block of the convert kernel calls this behind a barrier. `of_warps`:
// flags of its warps. Among the panel's kLowerEntries, the block owns every `apart`-th one from `first` up to `end`.
// The second warp writes them, because the first warp has more to do at this time.
template <int THREADS>
__device__ __forceinline__ void note_lower_planes(const Operand& x, int64_t panel, int first, int apart, int end,
                                                  const bool (&of_warps)[32]) {
  if (threadIdx.x / 32 != 1) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool lower = __any_sync(~0u, lane < THREADS / 32 && of_warps[lane]);
  for (int i = first + apart * lane; i < end; i += 32 * apart) x.lower[panel * kLowerEntries + i] = lower;
}

__device__ __forceinline__ bool has_lower_planes(const Operand& x, int64_t panel) {
  const uint4* const entries = reinterpret_cast<const uint4*>(x.lower + panel * kLowerEntries);
  uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < kLowerEntries / 16; ++i) any |= entries[i].x | entries[i].y | entries[i].z | entries[i].w;
  return any != 0;
}

}  // namespace sgemm::split
