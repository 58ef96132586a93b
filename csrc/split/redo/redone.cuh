// Counters of recomputed elements and tiles. Each file that includes this counts its own kernels
// (launch/read_redone.cuh).
#pragma once
#include <cstdint>

namespace sgemm::split {

// Numbers of recomputed elements, and of tiles that were recomputed by whole groups of columns, on this device since
// the library was loaded.
static __device__ unsigned long long redone_elements, redone_tiles;

// Adds `count` to a counter, unless it is 0, without a branch. After a branch the lanes of a warp might not reconverge,
// which the tensor-core instructions need.
__device__ __forceinline__ void count_redone(unsigned long long& counter, uint32_t count) {
  asm volatile(
      "{\n"
      ".reg .pred some;\n"
      "setp.ne.u32 some, %1, 0;\n"
      "@some red.global.add.u64 [%0], %2;\n"
      "}" ::"l"(&counter),
      "r"(count), "l"(static_cast<unsigned long long>(count))
      : "memory");
}

}  // namespace sgemm::split
