// Prefetches to the L2 cache.
#pragma once
#include <cuda_runtime.h>

namespace sgemm::hopper {

// Asks for the 128 bytes in which `address` lies.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

}  // namespace sgemm::hopper
