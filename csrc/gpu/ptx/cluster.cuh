// Blocks of a cluster: their barrier, and access to each other's shared memory.
#pragma once
#include "mbarrier.cuh"

namespace sgemm::hopper {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// The cluster's barrier in two halves; all threads must call both. Writes before a thread's arrival are visible to
// others after the wait.
__device__ __forceinline__ void arrive_cluster() {
  dawdle();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Arrives without a fence, which would wait for all memory accesses in flight. Use it only to publish initialised
// barriers.
__device__ __forceinline__ void arrive_cluster_relaxed() {
  dawdle();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Returns the address in shared memory of block `rank` that corresponds to `address` in this block's.
__device__ __forceinline__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Like arrive(), at the barrier of another block.
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
  dawdle();
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Loads a float from another block, or from this one.
__device__ __forceinline__ float load_in_cluster(uint32_t from) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(from));
  return value;
}

// Stores 32 bits to another block, or to this one; the barrier there counts the bytes.
__device__ __forceinline__ void store_in_cluster(uint32_t target, uint32_t value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(target),
               "r"(value), "r"(barrier)
               : "memory");
}

// The same for four floats or integers.
__device__ __forceinline__ void store_in_cluster(uint32_t target, const float* four, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
      "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_in_cluster(uint32_t target, const uint32_t* four, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
      "r"(four[0]), "r"(four[1]), "r"(four[2]), "r"(four[3]), "r"(barrier)
      : "memory");
}

// Bulk copy to another block, whose barrier counts the bytes.
__device__ __forceinline__ void copy_in_cluster(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier) {
  dawdle();
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
      "r"(shared_address(source)), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace sgemm::hopper
