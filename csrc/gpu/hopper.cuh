// Hopper's asynchronous instructions under the names that the PTX ISA gives them, only for sm_90a: those of ptx/,
// programmatic dependent launch, stores of several words, and how kernels begin.
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

// Initialises the barriers of a ring's stages, each by a thread: one thread fills a stage, and the warps of `consumers`
// threads use it up.
template <int STAGES>
__device__ __forceinline__ void init_ring(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES], int consumers) {
  if (threadIdx.x >= STAGES) return;
  init_barrier(&full[threadIdx.x], 1);
  init_barrier(&empty[threadIdx.x], consumers / 32);
  fence_barrier_init();
}

// Until the cluster's other blocks have started.
__device__ __forceinline__ void enter_cluster(uint32_t blocks) {
  if (blocks == 1) return;
  arrive_cluster_relaxed();
  wait_cluster();
}

// 8 or 16 bytes at once: the compiler takes them apart where it knows of the elements.
__device__ __forceinline__ void store(float* to, float2 x) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ void store(float* to, float4 x) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

}  // namespace sgemm::hopper
