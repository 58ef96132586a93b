// Blocks of a cluster that add up what lies in their shared memory, for kernels that run without clusters as well: on
// architectures that have none, a cluster has one block.
#pragma once
#include "ptx/cluster.cuh"

namespace sgemm::cluster {

__device__ __forceinline__ uint32_t rank() {
#if __CUDA_ARCH__ >= 900
  return hopper::cluster_rank();
#else
  return 0;
#endif
}

__device__ __forceinline__ uint32_t size() {
#if __CUDA_ARCH__ >= 900
  return hopper::cluster_size();
#else
  return 1;
#endif
}

// A barrier for the threads of `blocks` blocks.
__device__ __forceinline__ void sync(uint32_t blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    __syncwarp();
    hopper::arrive_cluster();
    return hopper::wait_cluster();
  }
#endif
  __syncthreads();
}

// The sum of the words of all blocks, in the order of their ranks, that lie where `own` does in this block's shared
// memory.
__device__ __forceinline__ float sum(const float* own, uint32_t blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    const uint32_t address = hopper::shared_address(own);
    float total = hopper::load_in_cluster(hopper::map_to_rank(address, 0));
    for (uint32_t rank = 1; rank < blocks; ++rank)
      total += hopper::load_in_cluster(hopper::map_to_rank(address, rank));
    return total;
  }
#endif
  return *own;
}

}  // namespace sgemm::cluster
