// One thread feeds the ring: planes of K's and V's blocks in the order of their use, and the tile's queries as float32.
#pragma once
#include "../gpu/tensor_map.cuh"
#include "tiles.cuh"

namespace sgemm::attention {

// Copies the queries of a tile: boxes of 32 columns for each warpgroup, where its planes will be.
template <class S>
__device__ __forceinline__ void load_queries(const Job& job, const CUtensorMap& map, const TileOfQueries& tile,
                                             char* memory, Shared<S>& shared, PipelineState<S::kQueryBuffers>& at) {
  constexpr int kBoxBytes = 64 * 128, kRegionBytes = S::kQueries * 128, kBoxes = S::kDepth / 32;
  const hopper::MapPlace place = hopper::place_in_map(job.p.q.batch, job.all_heads, tile.head);
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < 2; ++warpgroup) {
    uint64_t* const full = &shared.q_full[at.stage][warpgroup];
    hopper::wait_suspended(&shared.q_empty[at.stage][warpgroup], at.parity ^ 1);
    hopper::arrive_expecting(full, kBoxes * kBoxBytes);
    char* const to = memory + at.stage * S::kQueryBytes + warpgroup * kBoxBytes;
#pragma unroll 1
    for (int box = 0; box < kBoxes; ++box)
      hopper::copy_tensor(to + box * kRegionBytes, &map, box * 32, tile.first + warpgroup * 64, place.matrix,
                          place.group, full);
  }
  at.advance();
}

template <class S>
__device__ __forceinline__ void produce(const Job& job, const CUtensorMap& map, char* memory, Shared<S>& shared) {
  PipelineState<S::kSlots> at;
  PipelineState<S::kQueryBuffers> queries_at;
  char* const ring = memory + S::kQueryBuffers * S::kQueryBytes;
  const auto load = [&](const char* planes, const float4* scales, const uint32_t* ready, int64_t block) {
    hopper::wait_published(ready + block);
    uint64_t* const full = &shared.full[at.stage];
    hopper::wait_suspended(&shared.empty[at.stage], at.parity ^ 1);
    hopper::arrive_expecting(full, kBlockBytes + kScaleBytes);
    hopper::copy_bulk(ring + at.stage * kBlockBytes, planes + block * kBlockBytes, kBlockBytes, full);
    hopper::copy_bulk(&shared.scales[at.stage], scales + block, kScaleBytes, full);
    at.advance();
  };
#pragma unroll 1
  for (int index = blockIdx.x; index < job.tiles; index += gridDim.x) {
    const TileOfQueries tile = tile_at<S>(job, index);
    const int64_t first = int64_t{tile.head / (job.p.heads / job.p.groups)} * job.blocks_of_group;
    load(job.k, job.k_scales, job.k_ready, first);
    load_queries<S>(job, map, tile, memory, shared, queries_at);
#pragma unroll 1
    for (int j = 1; j < tile.blocks; ++j) {
      load(job.v, job.v_scales, job.v_ready, first + j - 1);
      load(job.k, job.k_scales, job.k_ready, first + j);
    }
    load(job.v, job.v_scales, job.v_ready, first + tile.blocks - 1);
  }
}

}  // namespace sgemm::attention
