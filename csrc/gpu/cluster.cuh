// Blocks of a cluster that read each other's shared memory. On architectures without clusters a cluster has one block.
#pragma once
#include <cooperative_groups.h>

#include <cstdint>

namespace sgemm::cluster {

__device__ __forceinline__ uint32_t rank() {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().block_rank();
#else
  return 0;
#endif
}

__device__ __forceinline__ uint32_t size() {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().num_blocks();
#else
  return 1;
#endif
}

// A barrier for the threads of `blocks` blocks.
__device__ __forceinline__ void sync(uint32_t blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) return cooperative_groups::this_cluster().sync();
#endif
  __syncthreads();
}

// The sum of the words of all blocks, in the order of their ranks, that lie where `own` does in this block's shared
// memory. `add` adds two.
template <class Add>
__device__ __forceinline__ float sum(const float* own, uint32_t blocks, const Add& add) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    float total = *cooperative_groups::this_cluster().map_shared_rank(own, 0);
    for (uint32_t rank = 1; rank < blocks; ++rank)
      total = add(total, *cooperative_groups::this_cluster().map_shared_rank(own, rank));
    return total;
  }
#endif
  return *own;
}

}  // namespace sgemm::cluster
