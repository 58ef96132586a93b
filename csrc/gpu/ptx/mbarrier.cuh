// mbarriers in shared memory, and barriers of some of a block's warps, by number.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace sgemm::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Where threads wait for each other, those of a test build (SGEMM_DELAYS) dawdle now and then, for up to 4
// microseconds: an order that nothing enforces doesn't hold there. tools/delays.py compares the results.
__device__ __forceinline__ void dawdle() {
#if defined(SGEMM_DELAYS)
  uint32_t x;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(x));
  x = (x + threadIdx.x / 32 * 0x9e3779b9u) * 0x85ebca6bu;
  x = (x ^ x >> 15) * 0xc2b2ae35u;
  if (x >> 29 == 0) __nanosleep(x & 0xfff);
#endif
}

// ---- mbarriers

__device__ __forceinline__ void init_barrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to bulk copies and to the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  dawdle();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and lets the phase also wait for `bytes` of bulk copies.
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  dawdle();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Until the barrier's phase of this parity has completed. With a time limit (10 ms here, in ns) the warp is suspended;
// without one it polls every few cycles and takes issue slots from its SM's other warps.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  dawdle();
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity), "r"(10'000'000)
      : "memory");
}

// ---- numbered barriers

__device__ __forceinline__ void sync_some(int barrier, int threads) {
  dawdle();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// As sync_some() for the others, without waiting for them.
__device__ __forceinline__ void arrive_some(int barrier, int threads) {
  dawdle();
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// For one thread, when its block has written: whether the block is the last of `count`, so that it sees what all wrote.
__device__ __forceinline__ bool arrives_last(uint32_t* arrived, uint32_t count) {
  dawdle();
  __threadfence();
  const bool last = atomicAdd(arrived, 1u) + 1 == count;
  __threadfence();
  return last;
}

}  // namespace sgemm::hopper
