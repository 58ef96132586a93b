// Whether an operand's panels need more than hi.
//
// Idea:   few float32 matrices hold 24 bits. Of what was bfloat16, float16 or a small integer before, a row's scale
//         leaves nothing for the lower planes. Each block of the pass notes whether it wrote anything there, and the
//         product neither copies nor multiplies the lower planes of a panel in which all are zero. Sums have the same
//         bits without them.
#pragma once
#include "../format/format.cuh"
#include "../plan/job.h"

namespace sgemm::split {

// By a whole block of the pass, behind a barrier: `of_warps` are its warps'. Of the panel's kLowerEntries every
// `apart`-th from `first` on, up to `end`, is the block's. The second warp writes them: the first has more to do then.
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
