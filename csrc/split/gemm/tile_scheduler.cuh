// The tile scheduler: assigns tiles of C, and parts of their k, to blocks.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../plan/job.h"

namespace sgemm::split {

// A tile, or a part of the k of a leftover tile.
struct WorkTile {
  int tile;
  int step0, step1;
  int part;  // -1 if the whole tile is the block's, or its cluster's
};

// Enumerates a block's work tiles, and finds the steps of a tile's k that fall to the block's rank in the cluster.
struct TileScheduler {
  uint32_t rank, blocks;  // rank in the cluster, and size of the cluster
  int first, stride;      // first work tile, and distance to the next
  int step0, step1;

  // A cluster has 1, 2 or 4 blocks, so shifts suffice: a division would take longer than everything done meanwhile.
  __device__ __forceinline__ explicit TileScheduler(const Job& job)
      : rank(hopper::cluster_rank()),
        blocks(hopper::cluster_size()),
        first(hopper::block_index() >> blocks / 2),
        stride(gridDim.x >> blocks / 2),
        step0((job.groups * rank >> blocks / 2) * job.together),
        step1((job.groups * (rank + 1) >> blocks / 2) * job.together) {}

  __device__ __forceinline__ WorkTile work_tile(const Job& job, int index) const {
    if (index < job.whole) return {index, step0, step1, -1};
    const int part = (index - job.whole) % job.parts;
    return {job.whole + (index - job.whole) / job.parts, job.groups * part / job.parts * job.together,
            job.groups * (part + 1) / job.parts * job.together, part};
  }
};

}  // namespace sgemm::split
