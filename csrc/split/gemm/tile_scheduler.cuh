// The tile scheduler: assigns tiles of C, and parts of the k of leftover tiles, to blocks.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../../gpu/stream_k.h"
#include "../plan/job.h"

namespace sgemm::split {

// Enumerates a block's work tiles, and finds the steps of a tile's k that fall to the block's rank in the cluster.
struct TileScheduler {
  uint32_t rank, blocks;  // rank in the cluster, and size of the cluster
  int first, stride;      // first work tile, and distance to the next
  int step0, step1;

  // A cluster has one or two blocks, so shifts suffice: a division would take longer than everything done meanwhile.
  __device__ __forceinline__ explicit TileScheduler(const Job& job)
      : rank(hopper::cluster_rank()),
        blocks(hopper::cluster_size()),
        first(hopper::block_index() >> blocks / 2),
        stride(gridDim.x >> blocks / 2),
        step0(job.steps * rank >> blocks / 2),
        step1(job.steps * (rank + 1) >> blocks / 2) {}

  __device__ __forceinline__ WorkTile work_tile(const Job& job, int index) const {
    if (index < job.whole) return {index, step0, step1 - step0, 0, 1, 0};
    const int left_over = (index - job.whole) / job.parts, part = (index - job.whole) % job.parts;
    const int first = job.steps * part / job.parts, last = job.steps * (part + 1) / job.parts;
    return {job.whole + left_over, first, last - first, part, job.parts, left_over * job.parts};
  }
};

// Returns the number of a block's first steps, which are multiplied with all planes before it is known which planes
// they need: whole windows that fill the ring.
template <class R>
__device__ __forceinline__ int steps_ahead(const TileScheduler& scheduler, int index, int steps) {
  return index == scheduler.first ? min(R::kStages / 2 * 2, steps) : 0;
}

}  // namespace sgemm::split
