// Tiles of queries, which persistent blocks take in turn; and what warps share.
#pragma once
#include "../gpu/hopper.cuh"
#include "../gpu/pipeline_state.cuh"
#include "shape.cuh"

namespace sgemm::attention {

constexpr int kConsumers = 256, kThreads = 128 + kConsumers;  // one warpgroup to feed two that multiply
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

struct TileOfQueries {
  int head, first, blocks;  // of all heads; its first query; blocks of keys that it needs
};

// Returns a thread block's tile `index`. Causal tiles are those of a wave of heads, odd ones from few keys to many and
// then even ones back: the first ones don't wait for many blocks, and the last ones are short.
template <class S>
__device__ __forceinline__ TileOfQueries tile_at(const Job& job, int index) {
  if (!job.p.causal) {
    const int head = index / job.tiles_of_head;
    return {head, (index - head * job.tiles_of_head) * S::kQueries, job.blocks_of_group};
  }
  const int of_wave = job.heads_of_wave * job.tiles_of_head, first_head = index / of_wave * job.heads_of_wave;
  const int heads = min(job.heads_of_wave, job.all_heads - first_head), rest = index % of_wave;
  const int place = rest / heads, last = job.tiles_of_head - 1;
  const int first = (2 * place < last ? 2 * place + 1 : 2 * (last - place)) * S::kQueries;
  const int most = (first + S::kQueries + S::kKeys - 1) / S::kKeys;
  return {first_head + rest - place * heads, first, min(most, job.blocks_of_group)};
}

// A block of K, or of V.
struct BlockOfKeys {
  bool exists, values;
  int group, of_group;
};

// Returns the block that a claim stands for. Tiles in flight read blocks K0, V0, K1 ... of a few groups at the same
// time.
__device__ __forceinline__ BlockOfKeys claimed_block(const Job& job, int claim) {
  const int of_wave = 2 * job.groups_of_wave * job.blocks_of_group, first = claim / of_wave * job.groups_of_wave;
  const int groups = min(job.groups_of_wave, job.all_groups - first), rest = claim % of_wave, round = rest / groups;
  return {claim < 2 * job.blocks, round % 2 == 1, first + rest - round * groups, round / 2};
}

// Scale of a block, and the factor of its elements, from the bits of its largest magnitude.
__device__ __forceinline__ float scale_of(uint32_t largest) {
  return largest < split::kInfinity ? split::power_of_two(split::row_exponent<split::Fp16x3>(largest)) : kRecompute;
}
__device__ __forceinline__ float factor_of(uint32_t largest) {
  return largest < split::kInfinity ? split::power_of_two(-split::row_exponent<split::Fp16x3>(largest)) : 1;
}

template <class S>
struct Shared {
  uint64_t full[S::kSlots], empty[S::kSlots];
  uint64_t q_full[S::kQueryBuffers][2], q_empty[S::kQueryBuffers][2];  // of each warpgroup's queries
  alignas(16) float4 scales[S::kSlots];
  float q_scales[S::kQueries];
  uint64_t raw_full[S::kRawParts];
  uint32_t largest[4];  // of each converting warp
  BlockOfKeys next[2];  // to be converted, by turns

  __device__ __forceinline__ void init() {
    hopper::init_ring(full, empty, kConsumers);
    if (threadIdx.x < S::kRawParts) hopper::init_barrier(&raw_full[threadIdx.x], 1);
    if (threadIdx.x < 2 * S::kQueryBuffers) {
      hopper::init_barrier(&q_full[threadIdx.x / 2][threadIdx.x % 2], 1);
      hopper::init_barrier(&q_empty[threadIdx.x / 2][threadIdx.x % 2], kConsumers / 2 / 32);
      hopper::fence_barrier_init();
    }
  }
};

}  // namespace sgemm::attention
