// Hopper's asynchronous instructions under the names that the PTX ISA gives them, only for sm_90a: those of ptx/,
// programmatic dependent launch, and stores of several words.
#pragma once
#include "dependent_launch.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

namespace sgemm::hopper {

// The same number, of which the compiler knows nothing: what depends on it is computed here and not ahead of a loop,
// where it would take registers.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// blockIdx.x, read anew: nothing keeps a register for it, or for what follows from it.
__device__ __forceinline__ uint32_t block_index() {
  uint32_t x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

using sgemm::launch_dependents;
__device__ __forceinline__ void wait_for_predecessor() {
  dawdle();
  sgemm::wait_for_predecessor();
}

// 8 or 16 bytes at once: the compiler takes them apart where it knows of the elements.
__device__ __forceinline__ void store(float* to, float2 x) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ void store(float* to, float4 x) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

}  // namespace sgemm::hopper
