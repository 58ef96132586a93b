// The epilogue of products of bfloat16 operands: alpha, C, activation and the store. Sums that are not finite are
// computed again.
#pragma once
#include "../../epilogue/epilogue.cuh"
#include "../../epilogue/in_order.cuh"
#include "../../epilogue/staged_band.cuh"
#include "../../epilogue/store_mode.h"
#include "../../gpu/hopper.cuh"
#include "../../gpu/panel_view.cuh"
#include "../../gpu/rasterization.cuh"
#include "native16.h"

namespace sgemm::split {

struct Native16Job {
  Problem p;
  StreamK deal;
  int tiles_m, tiles_n;
  bool long_windows;  // windows have kLongWindow of k
  StoreMode stores;
  float* parts;       // (deal.parts(), sums of a thread / 4, threads, 4)
  uint32_t* arrived;  // number of a leftover tile's parts that have arrived
  uint32_t* found;    // (flags) not 0 if operands hold subnormal elements (subnormals.cuh)
  int flags;          // number written by a kernel before the product; 0 if the product itself searches

  __device__ __forceinline__ TileIndex tile_at(int index) const {
    return sgemm::tile_at(index, tiles_m, tiles_n, kTilesTogether);
  }
};

// A panel of 64 of k lies in shared memory in blocks of 64 rows, or columns. Each row of a block holds 128 bytes along
// k; across k, each of k holds 128 bytes.
constexpr int kBlockBytes = PanelView<false, Native16::BK>::kBlockBytes;
constexpr int kNative16Threads = Native16::kThreads + 128;

template <int BLOCKS>  // blocks of 64 x 128 per warpgroup
struct Native16Ring : StageRing<2 * BLOCKS * kBlockBytes, Native16::BN / 64 * kBlockBytes, BLOCKS == 2 ? 4 : 6> {
  static constexpr int kRows = 2 * BLOCKS * 64, kCols = Native16::BN;
};

// The sums of a thread, as hopper::multiply() leaves them.
template <int BLOCKS>
using Native16Sums = float[BLOCKS][64];

// The place in D of a thread's first sum; others lie 8 or 64 rows, and 8 columns, further on. `pair` is the first sum's
// column within the tile. Only the tile's columns in [from, to) are stored.
struct Native16Place {
  int64_t entry, row, col;
  int pair, from, to;
  __device__ __forceinline__ bool stores(int in_tile) const { return in_tile >= from && in_tile < to; }
  __device__ __forceinline__ static constexpr int row_on(int r) { return r / 2 * 64 + r % 2 * 8; }
  __device__ __forceinline__ static constexpr int sum_at(int r, int c) {
    return r / 2 * 64 + r % 2 * 2 + c / 2 * 4 + c % 2;
  }
};

// Stores two neighbours at once.
template <bool READS_C, int BLOCKS>
__device__ __forceinline__ void store_pairs(const Problem& p, const Native16Place& at,
                                            const Native16Sums<BLOCKS>& sum) {
  float* const d = p.d.data + p.d.batch.offset(at.entry) + at.row * p.d.row + at.col;
  const float* const c = READS_C ? p.c.data + p.c.batch.offset(at.entry) + at.row * p.c.row + at.col : nullptr;
#pragma unroll
  for (int r = 0; r < 2 * BLOCKS; ++r) {
    const int on = Native16Place::row_on(r);
    if (at.row + on >= p.d.rows) return;
    float* const to = d + on * p.d.row;
    const float* const add = READS_C ? c + on * p.c.row : nullptr;
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
      const int col = j * 4, e = Native16Place::sum_at(r, j);
      if (!at.stores(col + at.pair)) continue;
      float2 x = {p.alpha * sum[e / 64][e % 64], p.alpha * sum[e / 64][e % 64 + 1]};
      if (READS_C) x = add_c(p.beta, *reinterpret_cast<const float2*>(add + col), x);
      hopper::store(to + col, x);
    }
  }
}

// Stores a staged band: 16 rows from `row0` on, and 32 columns of the tile from `first` on. Each lane stores a column,
// or a quad of every fourth row if four neighbours can be written at once. The function is not inlined, because it
// contains the activation.
static __device__ __noinline__ void store_band(const Native16Job& job, const Native16Place& at, int64_t row0, int first,
                                               const float* staged) {
  const Problem& p = job.p;
  const int lane = threadIdx.x % 32, rows = static_cast<int>(min(p.d.rows - row0, int64_t{16}));
  const int in_band = stores_quads(job.stores) ? lane % 8 * 4 : lane;
  if (!at.stores(first + in_band)) return;
  const int64_t col = at.col - at.pair + first + in_band;
  float* const to = p.d.matrix(at.entry).at(row0, col);
  const float* const from = p.beta == 0 ? nullptr : p.c.matrix(at.entry).at(row0, col);
  if (!stores_quads(job.stores)) {
#pragma unroll 4
    for (int row = 0; row < rows; ++row) {
      const float x = p.alpha * staged[place_in_band(row, lane / 4) + lane % 4];
      to[row * p.d.row] = finished(p, x, from + row * p.c.row);
    }
    return;
  }
  float4 add[4] = {};
  float x[16];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 8 + 4 * i;
    if (from && row < rows) add[i] = *reinterpret_cast<const float4*>(from + row * p.c.row);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 sums = *reinterpret_cast<const float4*>(staged + place_in_band(lane / 8 + 4 * i, lane % 8));
    float scaled[4] = {p.alpha * sums.x, p.alpha * sums.y, p.alpha * sums.z, p.alpha * sums.w};
    if (from) add_c(p.beta, {add[i].x, add[i].y, add[i].z, add[i].w}, scaled);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[4 * i + e] = scaled[e];
  }
  activate(p.activation, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 8 + 4 * i;
    if (row < rows) hopper::store(to + row * p.d.row, make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]));
  }
}

// Stores through shared memory: for D or C of any strides, and for activations.
template <int BLOCKS>
__device__ __forceinline__ void store_staged(const Native16Job& job, const Native16Place& at,
                                             const Native16Sums<BLOCKS>& sum, float* staging) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
    for (int band = 0; band < 4; ++band) {
      __syncwarp();
      stage_band(sum[block], band, staging, lane);
      __syncwarp();
      store_band(job, at, at.row - lane / 4 + block * 64, band * 32, staging);
    }
  }
}

// Stores a thread's sums one by one, in a tile with a sum that is not finite.
template <int BLOCKS>
__device__ __noinline__ void store_each(const Problem& p, const Native16Place& at, const float* sums) {
#pragma unroll 1
  for (int r = 0; r < 2 * BLOCKS; ++r) {
    const int64_t i = at.row + Native16Place::row_on(r);
#pragma unroll 1
    for (int c = 0; c < 32; ++c) {
      const int on = c / 2 * 8 + c % 2;
      const int64_t j = at.col + on;
      if (i >= p.d.rows || !at.stores(on + at.pair)) continue;
      float x = sums[Native16Place::sum_at(r, c)];
      if (!is_finite(x)) x = in_order(p, at.entry, i, j);
      const float* const add = p.beta == 0 ? nullptr : p.c.matrix(at.entry).at(i, j);
      *p.d.matrix(at.entry).at(i, j) = finished(p, p.alpha * x, add);
    }
  }
}

template <int BLOCKS>
__device__ __forceinline__ void store_tile(const Native16Job& job, int index, const Native16Sums<BLOCKS>& sum, int t,
                                           uint32_t rank, uint32_t blocks, float* staging) {
  const TileIndex tile = job.tile_at(index);
  using Ring = Native16Ring<BLOCKS>;
  const int64_t first = int64_t{tile.row} * Ring::kRows + t / 128 * BLOCKS * 64 + t % 128 / 32 * 16 + t % 32 / 4;
  const Problem& p = job.p;
  const int64_t col0 = int64_t{tile.col} * Ring::kCols, left = p.d.cols - col0;
  // If a cluster shares the tile, a block has the columns of its rank.
  const int of_block = Ring::kCols >> blocks / 2, from = static_cast<int>(rank) * of_block, pair = t % 4 * 2;
  const int to = static_cast<int>(min(left, int64_t{from + of_block}));
  const Native16Place at = {tile.batch, first, col0 + pair, pair, from, to};
  float zero = 0;
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) zero = zero_if_finite(sum[block], zero);
  // All lanes take the same branch, because they share what is staged.
  if (__builtin_expect(__any_sync(~0u, zero != 0), false)) {
    float copy[64 * BLOCKS];
#pragma unroll
    for (int e = 0; e < 64 * BLOCKS; ++e) copy[e] = sum[e / 64][e % 64];
    return store_each<BLOCKS>(p, at, copy);
  }
  if (!stores_pairs(job.stores) || p.activation != Activation::kNone) return store_staged(job, at, sum, staging);
  if (p.beta == 0)
    store_pairs<false>(p, at, sum);
  else
    store_pairs<true>(p, at, sum);
}

}  // namespace sgemm::split
