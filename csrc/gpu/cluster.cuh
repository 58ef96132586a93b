// Sums over the shared memory of a cluster's blocks. The same kernels also run without clusters: on architectures that
// lack them, a cluster has one block.
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

// Barrier for all threads of the cluster's `blocks` blocks.
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

// Returns the sum of one float of each block, in the order of the ranks. Each float has the address of `own` in its
// block's shared memory.
__device__ __forceinline__ float sum(const float* own, uint32_t blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    const uint32_t address = hopper::shared_address(own);
    float total = hopper::load_in_cluster(hopper::map_to_rank(address, 0));
    for (uint32_t rank = 1; rank < blocks; ++rank) total += hopper::load_in_cluster(hopper::map_to_rank(address, rank));
    return total;
  }
#endif
  return *own;
}

}  // namespace sgemm::cluster
