// Prefix sums over the lanes of a warp.
#pragma once
#include <cstdint>

namespace sgemm {

// Returns the sum of x over the lanes up to and including this one. All lanes must call.
__device__ __forceinline__ uint32_t inclusive_sum(uint32_t x) {
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, x, o);
    if (threadIdx.x % 32 >= o) x += before;
  }
  return x;
}

}  // namespace sgemm
