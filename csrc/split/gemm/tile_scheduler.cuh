// The tile scheduler: which tiles of C, and which part of their k, fall to a block.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../plan/job.h"

namespace sgemm::split {

// A tile, or part of the k of one that is left over.
struct WorkTile {
  int tile;
  int step0, step1;
  int part;  // -1 if the tile is the block's, or its cluster's
};

// Which work tiles a block takes in turn, and of a tile's k the steps that fall to its rank in the cluster.
struct TileScheduler {
  uint32_t rank, blocks;  // in the cluster
  int first, stride;      // work tiles
  int step0, step1;

  // Clusters of 1, 2 or 4: no division, which would take longer than all that is done meanwhile.
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
