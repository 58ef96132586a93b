// Cluster reduction: adds up the sums of a tile whose k is shared by the two blocks of a cluster.
//
// Idea:   block r gets the whole sums of the r-th half of each thread's elements, added in the order of the ranks. The
//         last stage of its ring is the mailbox for the other block's part: (quad, thread) float4. Each warp announces
//         to the other block that its block's mailbox is free. A warp does so before its main loop if the block has too
//         few steps to use that stage, otherwise after its main loop. Barriers count arrivals and bytes. No thread
//         waits for barrier.cluster, because its fence would wait for every memory operation in flight.
#pragma once
#include "clusters.h"
#include "ptx/cluster.cuh"
#include "warpgroups.cuh"

namespace sgemm {

// Barriers that are used once: a cluster has only one tile.
struct ClusterBarriers {
  uint64_t ready;                   // the other block's mailbox is free
  uint64_t parts[kConsumers / 32];  // complete when the other block has stored its part of a warp's sums

  // Called by a warp. `sums`: accumulators of a thread.
  __device__ __forceinline__ void init(int i, int sums) {
    if (i == 0) hopper::init_barrier(&ready, kConsumers / 32);
    if (i < kConsumers / 32) hopper::init_barrier(&parts[i], 1);
    __syncwarp();
    if (i < kConsumers / 32) hopper::arrive_expecting(&parts[i], sums / 2 * 32 * sizeof(float));
  }
};

// Returns true if the main loop uses the mailbox's stage.
template <class R>
__device__ __forceinline__ bool uses_mailbox(int steps) {
  return steps >= R::kStages;
}

// Signals to the other block that the warp has read what the mailbox's stage held.
__device__ __forceinline__ void announce_mailbox(ClusterBarriers& barriers, int t, uint32_t rank) {
  if (t % 32 == 0) hopper::arrive_in_cluster(hopper::map_to_rank(hopper::shared_address(&barriers.ready), rank ^ 1));
}

template <class R, int N>
__device__ __forceinline__ void reduce_cluster(ClusterBarriers& barriers, float (&sum)[N], char* ring, int t,
                                               uint32_t rank) {
  constexpr int kShare = N / kTileCluster;
  static_assert(kTileCluster == 2 && kShare * kConsumers * sizeof(float) <= R::kStageBytes);
  uint64_t* parts = &barriers.parts[t / 32];
  char* const mailbox = ring + (R::kStages - 1) * R::kStageBytes + t * sizeof(float4);
  hopper::wait(&barriers.ready, 0);
  const uint32_t to = hopper::map_to_rank(hopper::shared_address(mailbox), rank ^ 1);
  const uint32_t barrier = hopper::map_to_rank(hopper::shared_address(parts), rank ^ 1);
#pragma unroll
  for (int owner = 0; owner < kTileCluster; ++owner) {
    if (owner == rank) continue;
#pragma unroll
    for (int e = 0; e < kShare; e += 4)
      hopper::store_in_cluster(to + e * kConsumers * 4, &sum[owner * kShare + e], barrier);
  }
  hopper::wait(parts, 0);
  const float4* const received = reinterpret_cast<const float4*>(mailbox);
#pragma unroll
  for (int owner = 0; owner < kTileCluster; ++owner) {
    if (owner != rank) continue;
#pragma unroll
    for (int e = 0; e < kShare; e += 4) {
      const float4 other = received[e / 4 * kConsumers];
      float* own = &sum[owner * kShare + e];
      own[0] += other.x;
      own[1] += other.y;
      own[2] += other.z;
      own[3] += other.w;
    }
  }
}

}  // namespace sgemm
