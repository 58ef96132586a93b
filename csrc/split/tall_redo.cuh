// The redo of tall tiles: a few refused elements of a tile alone, groups of columns with more of them whole.
#pragma once
#include "redone.cuh"
#include "tall_epilogue.cuh"

namespace sgemm::split {

// The tiles of a warp that were listed.
static __device__ __noinline__ void redo_tiles(const TallJob& job, uint32_t entry, int64_t n0, float* staged,
                                               TallWarp& shared, const TallEntry* list, uint32_t listed) {
  __syncwarp();
  const TallEpilogue output(job, entry, n0, staged, shared);
  const int cols = static_cast<int>(min(int64_t{job.cols}, job.p.n - n0));
  const uint32_t lane = threadIdx.x % 32;
  uint32_t redone = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < listed; first += 32) {
    TallEntry own = {};  // the lane's
    if (first + lane < listed) own = list[first + lane];
    output.redo_elements(list + first, own.count);
    redone += __reduce_add_sync(~0u, own.count);
#pragma unroll 1
    for (uint32_t left = __ballot_sync(~0u, own.groups != 0); left; left &= left - 1) {
      const TallEntry& of = list[first + __ffs(left) - 1];
      const TallRows at = output.begin_tile(int64_t{of.tile} * TallTile::kRows, {});
#pragma unroll 1
      for (int col = 0; col < cols; col += TallTile::kCols) {
        if (!(of.groups >> col / TallTile::kCols & 1)) continue;
        output.redo_group(at, col);
        redone += TallTile::kRows * TallTile::kCols;
      }
      output.end_tile(at);
      __syncwarp();
    }
  }
  count_redone(redone_elements, lane == 0 ? redone : 0);
}

}  // namespace sgemm::split
