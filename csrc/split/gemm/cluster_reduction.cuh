// Sums of a tile whose k is shared by the blocks of a cluster.
//
// Idea:   block r gets the whole sums of its share of each thread's elements, the r-th N / BLOCKS of them, added in
//         the order of the ranks. The last stages of its ring serve as mailboxes, one for each of the other blocks:
//         (quad, thread) float4. Where a block has so few steps that it never uses them, each warp says so before it
//         begins, else when it is done. Barriers count arrivals and bytes. Nobody waits for a cluster's barrier, whose
//         fence would wait for everything that is under way.
#pragma once
#include "../plan/tile_shape.cuh"

namespace sgemm::split {

// For a cluster's only tile.
struct ClusterBarriers {
  uint64_t ready;                   // the other blocks' mailboxes are free
  uint64_t parts[kConsumers / 32];  // of a warp's sums, from the other blocks

  __device__ __forceinline__ void init(int i, uint32_t blocks, int sums) {
    if (i == 0) hopper::init_barrier(&ready, (blocks - 1) * (kConsumers / 32));
    if (i < kConsumers / 32) hopper::init_barrier(&parts[i], 1);
    __syncwarp();
    if (i < kConsumers / 32)
      hopper::arrive_expecting(&parts[i], (blocks - 1) * (sums >> blocks / 2) * 32 * sizeof(float));
  }
};

// Which stage of block `owner`'s ring is the mailbox of block `sender`.
template <class R>
__device__ __forceinline__ int mailbox(int owner, int sender, int blocks) {
  return R::kStages - 1 - ((sender - owner - 1) & (blocks - 1));
}

template <class R>
__device__ __forceinline__ bool uses_mailboxes(int steps, int blocks) {
  return steps > R::kStages - (blocks - 1);
}

// Tells the other blocks that the warp has read what was in the mailboxes.
__device__ __forceinline__ void announce_mailboxes(ClusterBarriers& barriers, int t, uint32_t rank, uint32_t blocks) {
  const uint32_t to = t % 32;
  if (to < blocks && to != rank)
    hopper::arrive_in_cluster(hopper::map_to_rank(hopper::shared_address(&barriers.ready), to));
}

template <class R, int BLOCKS, int N>
__device__ __forceinline__ void reduce_cluster(ClusterBarriers& barriers, float (&sum)[N], char* ring, int t,
                                               uint32_t rank) {
  constexpr int kShare = N / BLOCKS;
  static_assert(kShare * kConsumers * sizeof(float) <= R::kStageBytes && BLOCKS - 1 <= R::kStages);
  uint64_t* parts = &barriers.parts[t / 32];
  hopper::wait(&barriers.ready, 0);
  const uint32_t place = hopper::shared_address(ring) + t * sizeof(float4);
#pragma unroll
  for (int owner = 0; owner < BLOCKS; ++owner) {
    if (owner == rank) continue;
    const uint32_t to = hopper::map_to_rank(place + mailbox<R>(owner, rank, BLOCKS) * R::kStageBytes, owner);
    const uint32_t barrier = hopper::map_to_rank(hopper::shared_address(parts), owner);
#pragma unroll
    for (int e = 0; e < kShare; e += 4)
      hopper::store_in_cluster(to + e * kConsumers * 4, &sum[owner * kShare + e], barrier);
  }
  hopper::wait(parts, 0);
  const auto received = [&](int sender) {
    return reinterpret_cast<const float4*>(ring + mailbox<R>(rank, sender, BLOCKS) * R::kStageBytes) + t;
  };
#pragma unroll
  for (int owner = 0; owner < BLOCKS; ++owner) {
    if (owner != rank) continue;
#pragma unroll
    for (int e = 0; e < kShare; e += 4) {
      float4 total = make_float4(0, 0, 0, 0);
      float* own = &sum[owner * kShare + e];
#pragma unroll
      for (int r = 0; r < BLOCKS; ++r) {
        const float4 part = r == owner ? make_float4(own[0], own[1], own[2], own[3]) : received(r)[e / 4 * kConsumers];
        total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
      }
      own[0] = total.x;
      own[1] = total.y;
      own[2] = total.z;
      own[3] = total.w;
    }
  }
}

}  // namespace sgemm::split
