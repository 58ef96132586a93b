// Tiles of queries, which persistent blocks take in turn; and what warps share.
#pragma once
#include "../gpu/pipeline_state.cuh"
#include "shape.cuh"

namespace sgemm::attention {

constexpr int kConsumers = 256, kThreads = 128 + kConsumers;  // one warpgroup to feed two that multiply

struct TileOfQueries {
  int head, first, blocks;  // of all heads; its first query; blocks of keys that it needs
};

// Returns a block's tile `index`. Causal tiles of the most keys come first, so that the last wave is short.
template <class S>
__device__ __forceinline__ TileOfQueries tile_at(const Job& job, int index) {
  if (!job.p.causal) {
    const int head = index / job.tiles_of_head;
    return {head, (index - head * job.tiles_of_head) * S::kQueries, job.blocks_of_group};
  }
  const int round = index / job.all_heads, first = (job.tiles_of_head - 1 - round) * S::kQueries;
  const int most = (first + S::kQueries + S::kKeys - 1) / S::kKeys;
  return {index - round * job.all_heads, first, min(most, job.blocks_of_group)};
}

template <class S>
struct Shared {
  uint64_t full[S::kSlots], empty[S::kSlots];
  uint64_t q_full[S::kQueryBuffers][2], q_empty[S::kQueryBuffers][2];  // of each warpgroup's queries
  alignas(16) float4 scales[S::kSlots];
  float q_scales[S::kQueries];

  __device__ __forceinline__ void init() {
    hopper::init_ring(full, empty, kConsumers);
    if (threadIdx.x < 2 * S::kQueryBuffers) {
      hopper::init_barrier(&q_full[threadIdx.x / 2][threadIdx.x % 2], 1);
      hopper::init_barrier(&q_empty[threadIdx.x / 2][threadIdx.x % 2], kConsumers / 2 / 32);
      hopper::fence_barrier_init();
    }
  }
};

}  // namespace sgemm::attention
