// Sums of a tile whose k is shared by the blocks of a cluster.
//
// Idea:   block r gets the whole sums of its share of each thread's elements, the r-th N / BLOCKS of them, added in
//         the order of the ranks. The rings, which no block reads any more, serve as mailboxes: (rank, quad, thread)
//         float4. Barriers count arrivals and bytes. Nobody waits for a cluster's barrier, whose fence would wait for
//         everything that is under way.
#pragma once
#include "tile.cuh"

namespace sgemm::split {

// For a cluster's only tile.
struct ClusterBarriers {
  uint64_t ready;                   // the other blocks have used up their rings
  uint64_t parts[kConsumers / 32];  // of a warp's sums, from the other blocks

  __device__ __forceinline__ void init(int i, uint32_t blocks, int sums) {
    if (i == 0) hopper::init_barrier(&ready, blocks - 1);
    if (i >= kConsumers / 32) return;
    hopper::init_barrier(&parts[i], 1);
    hopper::arrive_expecting(&parts[i], (blocks - 1) * (sums >> blocks / 2) * 32 * sizeof(float));
  }
};

template <int BLOCKS, int N>
__device__ __forceinline__ void add_up_cluster(ClusterBarriers& barriers, float (&sum)[N], char* ring, int t,
                                               uint32_t rank) {
  constexpr int kShare = N / BLOCKS;
  uint64_t* parts = &barriers.parts[t / 32];
  sync_consumers();  // the ring is free
  if (t < BLOCKS && t != rank)
    hopper::arrive_in_cluster(hopper::map_to_rank(hopper::shared_address(&barriers.ready), t));
  hopper::wait(&barriers.ready, 0);
  const uint32_t place = hopper::shared_address(ring) + (rank * (kShare / 4) * kConsumers + t) * sizeof(float4);
#pragma unroll
  for (int owner = 0; owner < BLOCKS; ++owner) {
    if (owner == rank) continue;
    const uint32_t mailbox = hopper::map_to_rank(place, owner);
    const uint32_t barrier = hopper::map_to_rank(hopper::shared_address(parts), owner);
#pragma unroll
    for (int e = 0; e < kShare; e += 4)
      hopper::store_in_cluster(mailbox + e * kConsumers * 4, &sum[owner * kShare + e], barrier);
  }
  hopper::wait(parts, 0);
  const float4* mailbox = reinterpret_cast<const float4*>(ring) + t;
#pragma unroll
  for (int owner = 0; owner < BLOCKS; ++owner) {
    if (owner != rank) continue;
#pragma unroll
    for (int e = 0; e < kShare; e += 4) {
      float4 total = make_float4(0, 0, 0, 0);
      float* own = &sum[owner * kShare + e];
#pragma unroll
      for (int r = 0; r < BLOCKS; ++r) {
        const float4 part =
            r == owner ? make_float4(own[0], own[1], own[2], own[3]) : mailbox[(r * (kShare / 4) + e / 4) * kConsumers];
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
