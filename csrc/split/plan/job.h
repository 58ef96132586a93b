// Job: the kernel arguments of one piece of a split product.
#pragma once
#include "../../epilogue/store_mode.h"
#include "../../gpu/clusters.h"
#include "../../gpu/rasterization.cuh"
#include "../../problem/elements.h"
#include "sizes.h"

namespace sgemm::split {

// An operand seen as `size` rows along k: rows of A, or columns of B.
struct Operand {
  const float* data;
  ElementType elements;
  int64_t size;  // m or n
  int64_t stride, k_stride;
  BatchStride batch;
  int64_t count;  // matrices that are split: 1 if the batch shares one
  int tiles;      // rows or columns of tiles
  int panels;     // panels of 128 rows
  int64_t split;  // rows of all matrices whose planes the convert kernel writes: of a single panel perhaps not all 128
  bool along_k;   // planes are K-major, else MN-major
  bool by_lanes;  // within each 16 of k, planes are in the order of lane_place()
  bool vector;    // four neighbours can be read at once
  bool mapped;    // the kernel has a tensor map of the operand
  // Bytes from a panel's first 64 rows to the last 64: half a plane, or all planes of half a panel if these lie
  // together.
  int half_apart = kHalfPlaneBytes;
  char* planes;
  RowScale* row_scales;
  RowStats* row_stats;  // statistics of rows that have small elements, or of all rows (guard.cuh)
  bool all_stats;       // all rows have statistics
  bool* lower;          // panels' flags of nonzero lower planes (nonzero_planes.cuh)

  // Points to element `k` of row `row` in matrix `entry` of the batch.
  SGEMM_HOST_DEVICE ElementPointer at(int64_t entry, int64_t row, int64_t k) const {
    return ElementPointer{data, elements} + (batch.offset(entry) + row * stride + k * k_stride);
  }
  // Returns element `k` of row `row` in matrix `entry` of the batch, or 0 from k = `depth` on. Elements are float32.
  SGEMM_HOST_DEVICE float within(int64_t depth, int64_t entry, int64_t row, int64_t k) const {
    return k < depth ? data[batch.offset(entry) + row * stride + k * k_stride] : 0;
  }
  SGEMM_HOST_DEVICE bool in_halves() const { return half_apart > kHalfPlaneBytes; }
  SGEMM_HOST_DEVICE int64_t neighbour() const { return along_k ? k_stride : stride; }  // strides, elements
  int64_t across() const { return along_k ? stride : k_stride; }
  // Returns the operand's first `depth` of k as a matrix whose rows run along neighbour().
  ConstMatrix lines(int64_t depth) const {
    return {data, along_k ? size : depth, along_k ? depth : size, across(), neighbour(), count == 1 ? 0 : batch};
  }
};

// Returns where element k lies within the plane. The order is such that four neighbours, which one lane reads, are the
// elements that this lane holds of wgmma's A fragment: two pairs, 8 apart.
SGEMM_HOST_DEVICE constexpr int lane_place(int k) { return k / 16 * 16 + k % 16 / 4 * 2 + k % 2 + k % 4 / 2 * 8; }

struct Job {
  Problem p;  // k is one slice's; batch counts slices as well; d receives the result, or the slices' partial sums
  Operand a, b;
  int64_t k_all;    // k of all slices
  int64_t k_slice;  // k of a slice; 0 if the batch entries are not slices
  int steps;        // steps of k per tile
  int group;        // rows of tiles that are walked together, so that their panels stay in the L2 cache
  bool triangle;    // SplitPlan::triangle
  bool packed_a;    // SplitPlan::packed_a
  // Blocks take work tiles in turn. The first `whole` work tiles are tiles. Each tile from there on is left over, and
  // has `parts` work tiles.
  int work_tiles, whole, parts;
  StoreMode stores;
  bool plain_alpha;      // is_plain_alpha(): alpha is of no extreme size
  bool batch_invariant;  // SplitPlan::batch_invariant
  // The epilogue only scales sums, by a plain alpha, and adds the caller's c: no activation, no earlier pieces of k.
  bool scaled_only;
  int promotion;  // sums leave the tensor cores every step of k (0) or every second step (1)
  // The elements that the guard refused. `refused` has, per tile, block of its cluster and warp, a bit for each band
  // that has masks. `masks` has, per tile, band and thread, a bit for each of 16 rows.
  uint32_t* refused;     // (tiles, kTileCluster, 8)
  uint16_t* masks;       // (tiles, bands, 256)
  RowScale* row_scales;  // scales and thresholds for tiles with refused elements: (tiles, operand, 128)
  float* part_sums;      // (tiles left over, parts, a thread's sums / 4, 256) float4
  uint32_t* arrived;     // (tiles left over): number of a tile's parts that are complete
  int segment;           // SplitPlan::segment

  // Index of a matrix's first row in `row_scales` and `row_stats`.
  SGEMM_HOST_DEVICE int64_t first_row(const Operand& x, int64_t batch) const {
    return x.count == 1 ? 0 : batch * x.panels * kTile;
  }

  // Planes of a step of panel `index`, which counts the panels of all matrices.
  template <class F>
  SGEMM_HOST_DEVICE char* panel(const Operand& x, int64_t index, int step) const {
    return x.planes + (index * steps + step) * kPairs<F> * kPanelBytes;
  }

  // Returns the tile with this index.
  __device__ __forceinline__ TileIndex tile_at(int index) const {
    return triangle ? upper_tile_at(index, a.tiles, group) : sgemm::tile_at(index, a.tiles, b.tiles, group);
  }

  // k of one batch entry: the last slice may be shorter.
  SGEMM_HOST_DEVICE int64_t depth(int64_t batch) const {
    if (!k_slice) return p.k;
    const int64_t left = k_all - batch * k_slice;
    return left < k_slice ? left : k_slice;
  }
};

}  // namespace sgemm::split
