// Bulk copies to shared memory, by address or by tensor map: `bytes`, target and source are multiples of 16.
#pragma once
#include "mbarrier.cuh"

namespace sgemm::hopper {

__device__ __forceinline__ void copy_bulk(void* target, const void* source, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(target)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Brings a tensor map to where copies look for it.
__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box at (x, y, z, w) of a tensor map.
__device__ __forceinline__ void copy_tensor(void* target, const void* map, int x, int y, int z, int w,
                                            uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(target)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}

// Makes what this thread wrote to shared memory the ordinary way visible to wgmma and bulk copies.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace sgemm::hopper
