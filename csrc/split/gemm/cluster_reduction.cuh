// Cluster reduction: adds up the sums of a tile whose k is shared by the blocks of a cluster.
//
// Idea:   block r gets the whole sums of its share of each thread's elements, the r-th N / BLOCKS of them, added in the
//         order of the ranks. The last stages of its ring serve as mailboxes, one for each of the other blocks: (quad,
//         thread) float4. Each warp announces to the other blocks that its block's mailboxes are free. A warp does so
//         before its main loop if the block has too few steps to use those stages, otherwise after its main loop.
//         Barriers count arrivals and bytes. No thread waits for barrier.cluster, because its fence would wait for
//         every memory operation in flight.
#pragma once
#include "../plan/tile_shape.cuh"

namespace sgemm::split {

// Barriers that are used once: a cluster has only one tile.
struct ClusterBarriers {
  uint64_t ready;                   // the other blocks' mailboxes are free
  uint64_t parts[kConsumers / 32];  // complete when the other blocks have stored their parts of a warp's sums

  __device__ __forceinline__ void init(int i, uint32_t blocks, int sums) {
    if (i == 0) hopper::init_barrier(&ready, (blocks - 1) * (kConsumers / 32));
    if (i < kConsumers / 32) hopper::init_barrier(&parts[i], 1);
    __syncwarp();
    if (i < kConsumers / 32)
      hopper::arrive_expecting(&parts[i], (blocks - 1) * (sums >> blocks / 2) * 32 * sizeof(float));
  }
};

// Returns the stage of block `owner`'s ring that is the mailbox of block `sender`.
template <class R>
__device__ __forceinline__ int mailbox(int owner, int sender, int blocks) {
  return R::kStages - 1 - ((sender - owner - 1) & (blocks - 1));
}

template <class R>
__device__ __forceinline__ bool uses_mailboxes(int steps, int blocks) {
  return steps > R::kStages - (blocks - 1);
}

// Signals to the other blocks that the warp has read what the mailboxes' stages held.
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
