// The redo of tall tiles. Few refused elements of a tile are computed one by one. For groups of columns with more of
// them the products are computed again, so that certified elements keep their values.
#pragma once
#include "../redo/redone.cuh"
#include "tall_epilogue.cuh"

namespace sgemm::split {

// Redoes a warp's listed tiles. `plain_cols`: the panel's scales are plain.
template <int STEPS, TallReads READS>
static __device__ __noinline__ void redo_tiles(const TallJob& job, uint32_t entry, int64_t n0, float* staged,
                                               TallWarp& shared, const TallPanel<STEPS>& panel, bool plain_cols,
                                               const TallEntry* list, uint32_t listed) {
  __syncwarp();
  const TallEpilogue output(job, entry, n0, staged, shared);
  const ConstMatrix a = job.p.a.matrix(entry);
  const int cols = static_cast<int>(min(int64_t{job.cols}, job.p.n - n0));
  const int first_k = place_of(READS, threadIdx.x % 4, 0);
  const uint32_t lane = threadIdx.x % 32;
  uint32_t redone = 0;  // number of elements redone by the lane
#pragma unroll 1
  for (uint32_t first = 0; first < listed; first += 32) {
    TallEntry own = {};  // the lane's entry
    if (first + lane < listed) own = list[first + lane];
    output.redo_elements(list + first, own.count);
    redone += own.count;
#pragma unroll 1
    for (uint32_t left = __ballot_sync(~0u, own.groups != 0); left; left &= left - 1) {
      const TallEntry& of = list[first + __ffs(left) - 1];
      const int64_t row = int64_t{of.tile} * TallTile::kRows + lane / 4 * 2;
      LineElements<STEPS> x[2];
      read_rows<READS, STEPS>(x, a.data + row * a.row + first_k * a.col, a, job.p.m - row,
                              static_cast<int>(job.p.k) - first_k);
      RowPlanes<STEPS> planes;
      RowScale row_scales[2];
      const bool some_small = split_rows<STEPS>(x, planes, row_scales, shared.rows_of_others);
      if (some_small) panel.lower_thresholds(row_scales, job.cols);
      const bool plain_scales = output.plain_scales(row_scales, plain_cols);
      const TallRows at = output.begin_tile(int64_t{of.tile} * TallTile::kRows, row_scales);
#pragma unroll 1
      for (int col = 0; col < cols; col += TallTile::kCols) {
        if (!(of.groups >> col / TallTile::kCols & 1)) continue;
        float sums[8];
        multiply_rows<STEPS>(planes, panel.block(0, 0) + col / TallTile::kCols * STEPS * 64, sums);
        const int in_panel = col + lane % 4 * 4;
        const uint32_t failed = output.certify(at, col, &panel.row_scales[in_panel], &panel.of_others[in_panel],
                                               some_small, plain_scales, sums);
        output.redo_group(at, col, failed, sums);
        redone += __popc(failed);
      }
      output.end_tile(at);
      __syncwarp();
    }
  }
  redone = __reduce_add_sync(~0u, redone);
  count_redone(redone_elements, lane == 0 ? redone : 0);
}

}  // namespace sgemm::split
