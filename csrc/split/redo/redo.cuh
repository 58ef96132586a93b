// The redo: recomputes the elements that the guard refused, in float32, from the original operands.
//
// Idea:   a block's consumers do this after all of its tiles, and only if some element was refused. A few elements take
//         a warp each. If a tile has more, the block computes the groups of 32 columns that hold them. Both ways give
//         the same bits (chains.cuh), so that the number of refused elements does not change the bits of one.
// Inf:    a row that holds Inf has no scale; its elements come from its products with Inf (inf_product.cuh).
// Calls:  these are separate functions, so that the compiler's code for the rest of the kernel is the same as without
//         them.
#pragma once
#include "chains.cuh"
#include "inf_product.cuh"
#include "redone.cuh"
#include "refused.cuh"

namespace sgemm::split {

constexpr uint32_t kFewElements = 128;  // for more elements, the block is faster than its warps

// Reads the tile's masks into `refused`: each thread reads the masks that it wrote. Returns false if the tile has none;
// its scales and thresholds weren't written then.
template <class Shape>
__device__ __forceinline__ bool read_refused(const Job& job, int index, uint32_t rank, int t, RefusedTile& refused) {
  const uint32_t* const of_warps = job.refused + (int64_t{index} * kTileCluster + rank) * 8;
  if (!__any_sync(~0u, of_warps[t % 8])) return false;
  sync_consumers();  // the previous tile is done
  for (int i = t; i < kTile * kTile / 32; i += kConsumers) refused.bits[0][i] = 0;
  static_assert(kConsumers == 2 * kTile);
  const RowScale row_scale = job.row_scales[int64_t{index} * 2 * kTile + t],
                 infs = __ballot_sync(~0u, is_inf_row(row_scale));
  refused.row_scales[0][t] = row_scale;
  if (t % 32 == 0) refused.inf_lines[0][t / 32] = infs;
  sync_consumers();
  const uint32_t mine = of_warps[t / 32];
#pragma unroll 1
  for (int band = 0; band < Shape::kBands; ++band) {
    if (!(mine >> band & 1)) continue;
    const uint32_t mask = job.masks[(int64_t{index} * Shape::kBands + band) * kConsumers + t];
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const uint32_t of_row = __ballot_sync(~0u, mask >> i & 1);
      if (t % 32 == i) refused.bits[Shape::warp_row(t) + i][band] |= of_row;
    }
  }
  sync_consumers();
  return true;
}

// Numbers of refused elements: all, and those whose row and column hold no Inf.
struct RefusedCounts {
  uint32_t all, finite;
};
__device__ __forceinline__ RefusedCounts count_refused(RefusedTile& refused, int t) {
  if (t < 2) refused.counts[t] = 0;
  sync_consumers();
#pragma unroll 1
  for (int i = t; i < kTile * kTile / 32; i += kConsumers) {
    const uint32_t bits = refused.bits[0][i];
    if (bits == 0) continue;
    atomicAdd(&refused.counts[0], __popc(bits));
    atomicAdd(&refused.counts[1], __popc(refused.finite(i)));
  }
  sync_consumers();
  const RefusedCounts counts = {refused.counts[0], refused.counts[1]};
  sync_consumers();  // all have read them
  return counts;
}

// Recomputes the refused elements of a tile's `group`-th 32 columns. Elements whose sum isn't finite stay refused.
static __device__ __noinline__ void redo_columns(const Job& job, const Corner& tile, int group, int t,
                                                 RefusedTile& refused, ChainMemory& memory) {
  const int64_t col = tile.col + group * 32;
  const TileLines lines = lines_of(job.p, tile.batch, tile.row, col, job.depth(tile.batch));
  tile_of_chains(lines, memory, t, [&](int i, int j, float sum) {
    if (!refused.is_refused(i, group * 32 + j) || !isfinite(sum)) return;
    store_redone(job, tile.batch, tile.row + i, col + j, sum);
    refused.clear(i, group * 32 + j);
  });
}

// Recomputes all refused elements of a tile. The warps take them in turn.
static __device__ __noinline__ void redo_elements(const Job& job, const Corner& tile, int t,
                                                  const RefusedTile& refused) {
  const int warp = t / 32, lane = t % 32;
  int next = 0;
#pragma unroll 1
  for (int first = 0; first < kTile * kTile / 32; first += 32) {
    const uint32_t own = refused.bits[0][first + lane];
    for (uint32_t groups = __ballot_sync(~0u, own); groups; groups &= groups - 1) {
      const int group = __ffs(groups) - 1;
      for (uint32_t bits = __shfl_sync(~0u, own, group); bits; bits &= bits - 1) {
        if (next++ % (kConsumers / 32) != warp) continue;
        const int64_t row = tile.row + (first + group) / (kTile / 32),
                      col = tile.col + (first + group) % (kTile / 32) * 32 + __ffs(bits) - 1;
        const TileLines of = lines_of(job.p, tile.batch, row, col, job.depth(tile.batch));
        const float sum = element_of_chains(of.a, of.b, of.depth);
        if (lane == 0) store_redone(job, tile.batch, row, col, sum);
      }
    }
  }
}

// Recomputes the refused elements of rows and columns that hold Inf. Elements whose row and column both hold
// Inf or NaN stay refused. Precondition: there are no earlier pieces of k, which may hold Inf as well.
static __device__ __noinline__ void redo_inf(const Job& job, const Corner& tile, int t, RefusedTile& refused,
                                             InfMemory& memory) {
  const ElementMatrix a = matrix_of_a(job.p, tile.batch), b = matrix_of_b(job.p, tile.batch);
  const int64_t depth = job.depth(tile.batch);
  const auto redo_line = [&](bool of_b, int own) {
    const auto is_wanted = [&](int other) {
      const RowScale row_scale = refused.row_scales[!of_b][other];
      return refused.is_refused(of_b ? other : own, of_b ? own : other) && is_finite_row(row_scale);
    };
    bool some = false;
    for (int other = t % 32; other < kTile; other += 32) some = some || is_wanted(other);
    if (!__any_sync(~0u, some)) return;
    const bool wanted = is_wanted(t % kTile);
    const int64_t row = tile.row + (of_b ? 0 : own), col = tile.col + (of_b ? own : 0);
    const ElementPointer from_a = a.at(row, 0), from_b = b.at(0, col);
    const float sum = inf_product(of_b ? InfLine{from_b, from_a, b.row, a.col, a.row, depth}
                                       : InfLine{from_a, from_b, a.col, b.row, b.col, depth},
                                  t, wanted, memory);
    if (t >= kTile || !wanted) return;
    store_redone(job, tile.batch, row + (of_b ? t : 0), col + (of_b ? 0 : t), sum);
    refused.clear(of_b ? t : own, of_b ? own : t);
  };
#pragma unroll 1
  for (int first = 0; first < 2 * kTile; first += 32) {
    const RowScale row_scale = refused.row_scales[first / kTile][first % kTile + t % 32];
#pragma unroll 1
    for (uint32_t lines = __ballot_sync(~0u, is_inf_row(row_scale)); lines; lines &= lines - 1)
      redo_line(first >= kTile, first % kTile + __ffs(lines) - 1);
  }
  sync_consumers();
}

// Recomputes the refused elements of a tile that block `rank` of a cluster finished. `t`: index of the thread among the
// consumers. `memory`: the ring, which the product no longer uses.
template <class Shape>
__device__ __forceinline__ void redo(const Job& job, int index, uint32_t rank, int t, char* memory) {
  RefusedTile& refused = *reinterpret_cast<RefusedTile*>(memory);
  char* const rest = memory + kRefusedBytes;
  if (!read_refused<Shape>(job, index, rank, t, refused)) return;
  RefusedCounts count = count_refused(refused, t);
  const TileIndex at = job.tile_at(index);
  const Corner tile = {at.batch, int64_t{at.row} * Shape::kRows, int64_t{at.col} * Shape::kCols};
  count_redone(redone_elements, t == 0 ? count.all : 0);
  count_redone(redone_tiles, t == 0 && count.finite > kFewElements);
  if (count.finite > kFewElements) {
#pragma unroll 1
    for (int group = 0; group < Shape::kCols / 32; ++group) {
      bool some = false;
      for (int row = t % 32; row < kTile; row += 32) some = some || refused.bits[row][group];
      if (__any_sync(~0u, some)) redo_columns(job, tile, group, t, refused, *reinterpret_cast<ChainMemory*>(rest));
    }
    count = count_refused(refused, t);
  }
  // An Inf of a row or column decides an element only if there are no earlier pieces of k.
  if (count.all > count.finite && job.p.k_before == 0) {
    redo_inf(job, tile, t, refused, *reinterpret_cast<InfMemory*>(rest));
    count = count_refused(refused, t);
  }
  if (count.all) redo_elements(job, tile, t, refused);
}

}  // namespace sgemm::split
