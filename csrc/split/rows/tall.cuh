// Products with many rows, few columns and a short k, split in registers: bound by reading A and writing D once.
//
// Idea:   a block keeps a panel of B in shared memory, split, with all of its k. Its warps multiply one tile of A's
//         rows after the other by the panel. A lane reads just those elements of A that it holds in the tensor cores'
//         products, for which the order of rows, columns and k makes no difference. So A skips shared memory, no warp
//         waits for another, and a row's scale is known before the row is split. The next rows are read while a tile is
//         multiplied and stored.
// Layout: lane 4 g + t has rows 2 g and 2 g + 1 of 16, four elements of each 16 of k, and four of each 16 columns.
// Bound:  memory; from about 64 columns on also a lane's instructions around the tensor cores' products.
#pragma once
#include "tall_redo.cuh"

namespace sgemm::split {

template <int TILE, TallReads READS>
__global__ void __launch_bounds__(32 * kTallTiles[TILE].warps, 1) split_tall(const __grid_constant__ TallJob job) {
  constexpr int kSteps = kTallTiles[TILE].steps();
  constexpr int kPanelBytes = tall_panel_bytes(TILE, 1), kStagedBytes = tall_staged_bytes(1);  // bytes per column
  extern __shared__ __align__(16) char panel_memory[];
  const Problem& p = job.p;
  const uint32_t index = blockIdx.x / job.groups, entry = index / job.tiles_n;
  const int64_t n0 = int64_t{index - entry * job.tiles_n} * job.cols;
  const int cols = static_cast<int>(min(int64_t{job.cols}, p.n - n0));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // The panel's warps take tiles in turn.
  const uint32_t warps = blockDim.x / 32, stride = job.groups * warps;
  uint32_t tile = (blockIdx.x - index * job.groups) * warps + warp;
  const TallPanel<kSteps> panel(panel_memory, job.cols);
  char* const staged = panel_memory + job.cols * kPanelBytes + warp * kStagedBytes * job.cols;
  __shared__ TallWarp shared[kTallTiles[TILE].warps];
  const TallEpilogue output(job, entry, n0, reinterpret_cast<float*>(staged), shared[warp]);

  const ConstMatrix a = p.a.matrix(entry);
  const int first_k = place_of(READS, lane % 4, 0);
  const float* const from = a.data + first_k * a.col;
  LineElements<kSteps> x[2];
  const auto read = [&] {
    const int64_t row = int64_t{tile} * TallTile::kRows + lane / 4 * 2;
    read_rows<READS, kSteps>(x, from + row * a.row, a, p.m - row, static_cast<int>(p.k) - first_k);
  };
  hopper::wait_for_predecessor();
  hopper::launch_dependents();
  read();
  const PlainColumns of_cols = panel.template fill<READS>(job, p.b.matrix(entry), n0);
  const bool plain_cols = of_cols.plain && job.plain;

  // Tiles with uncertain elements wait in a list until all others are done: a call in the loop would cost it registers.
  const uint32_t before = tile * (job.tiles_m / stride) + min(tile, job.tiles_m % stride);  // tiles of preceding warps
  TallEntry* const list = job.lists + int64_t{index} * job.tiles_m + before;
  uint32_t listed = 0;
#pragma unroll 1
  while (tile < job.tiles_m) {
    RowPlanes<kSteps> planes;
    RowScale row_scales[2];
    const bool some_small = split_rows<kSteps>(x, planes, row_scales, shared[warp].rows_of_others);
    if (some_small) panel.lower_thresholds(row_scales, job.cols);
    const bool plain = __all_sync(~0u, plain_cols && is_plain(row_scales[0]) && is_plain(row_scales[1]));
    const TallRows rows = output.begin_tile(int64_t{tile} * TallTile::kRows, row_scales);
    const bool plain_scales = plain || output.plain_scales(row_scales, of_cols.plain_scales);
    bool uncertified = false;  // the tile has uncertain elements
    tile += stride;
    read();
    const uint4* b = panel.block(0, 0);
#pragma unroll 1
    for (int first = 0; first < cols; first += 16, b += kSteps * 64) {
      float sums[8];
      multiply_rows<kSteps>(planes, b, sums);
      const int at = first + lane % 4 * 4;
      uint32_t failed = 0;  // a bit per element
      if (__builtin_expect(plain, true))
        output.scale(rows, *reinterpret_cast<const uint4*>(panel.row_scales + at), sums);
      else
        failed =
            output.certify(rows, first, &panel.row_scales[at], &panel.of_others[at], some_small, plain_scales, sums);
      if (__builtin_expect(job.more, false)) failed |= output.add(rows, first, sums);
      if (__builtin_expect(plain && !job.more, true) || !__any_sync(~0u, failed)) {
        output.store(rows, first, sums);
      } else {
        if (output.note(tile - stride, first, failed, !uncertified)) output.store(rows, first, sums);
        uncertified = true;
      }
    }
    if (__builtin_expect(uncertified, false))
      output.list(list[listed++]);
    else
      output.end_tile(rows);
  }
  if (__builtin_expect(listed != 0, false))
    redo_tiles<kSteps, READS>(job, entry, n0, reinterpret_cast<float*>(staged), shared[warp], panel,
                              of_cols.plain_scales, list, listed);
}

}  // namespace sgemm::split
