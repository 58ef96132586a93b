// Hopper's asynchronous instructions under the names of the PTX ISA, only for sm_90a: those of ptx/, programmatic
// dependent launch, vector stores, and the prologue of kernels.
#pragma once
#include "dependent_launch.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

namespace sgemm::hopper {

// Returns x, but opaque to the compiler: computations that depend on it stay here instead of being hoisted out of a
// loop, where they would take registers.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Reads blockIdx.x anew, so that no register is kept for the index or for values derived from it.
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

// Initialises the barriers of a ring's stages, one stage per thread. One thread fills a stage, and the warps of
// `consumers` threads release it.
template <int STAGES>
__device__ __forceinline__ void init_ring(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES], int consumers) {
  if (threadIdx.x >= STAGES) return;
  init_barrier(&full[threadIdx.x], 1);
  init_barrier(&empty[threadIdx.x], consumers / 32);
  fence_barrier_init();
}

// Waits until the cluster's other blocks have started.
__device__ __forceinline__ void enter_cluster(uint32_t blocks) {
  if (blocks == 1) return;
  arrive_cluster_relaxed();
  wait_cluster();
}

// Stores 8 or 16 bytes at once. The compiler may split an ordinary float2 or float4 store whose elements it sees
// separately.
__device__ __forceinline__ void store(float* to, float2 x) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ void store(float* to, float4 x) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

}  // namespace sgemm::hopper
