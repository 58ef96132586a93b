// One piece of a split product, as its kernels see it.
#pragma once
#include "../../problem/elements.h"
#include "../../problem/views.h"
#include "plan.h"

namespace sgemm::split {

// An operand seen as `size` rows along k, whichever operand it is: rows of A, columns of B.
struct Operand {
  const float* data;
  ElementType elements;
  int64_t size;  // m or n
  int64_t stride, k_stride;
  BatchStride batch;
  int64_t count;  // matrices that are split: 1 if the batch shares one
  int tiles;      // rows or columns of tiles
  int panels;     // of 128 rows
  bool along_k;   // planes are K-major, else MN-major
  bool by_lanes;  // each 16 of k of the planes in the order of lane_place()
  bool vector;    // four neighbours can be read at once
  bool mapped;    // there is a tensor map
  // Bytes from a panel's first 64 rows to the others: of one plane, or of all planes where those of half a panel lie
  // together.
  int half_apart = kHalfPlaneBytes;
  char* planes;
  uint32_t* words;
  uint32_t* guards;  // records of rows that have small elements (guard.cuh)
  bool* lower;       // entries of panels (lower_planes.cuh)

  // Row `row` of a matrix of the batch, from `k` on.
  SGEMM_HOST_DEVICE ElementPointer at(int64_t entry, int64_t row, int64_t k) const {
    return ElementPointer{data, elements} + (batch.offset(entry) + row * stride + k * k_stride);
  }
  SGEMM_HOST_DEVICE bool in_halves() const { return half_apart > kHalfPlaneBytes; }
  SGEMM_HOST_DEVICE int64_t neighbour() const { return along_k ? k_stride : stride; }  // distances in memory
  int64_t across() const { return along_k ? stride : k_stride; }
  // `depth` of k as lines of neighbours.
  ConstMatrix lines(int64_t depth) const {
    return {data, along_k ? size : depth, along_k ? depth : size, across(), neighbour(), count == 1 ? 0 : batch};
  }
};

// Where k lies within its 16, if a lane that reads four neighbours has them in its places of a wgmma's A: pairs, 8
// apart.
SGEMM_HOST_DEVICE constexpr int lane_place(int k) { return k / 16 * 16 + k % 16 / 4 * 2 + k % 2 + k % 4 / 2 * 8; }

struct Job {
  Problem p;  // k is a slice's; batch counts slices as well; d takes the sums, or the partial sums of slices
  Operand a, b;
  int64_t k_all;         // of all slices
  int64_t k_slice;       // 0 if the batch entries are not slices
  int steps;             // of k per tile
  int together, groups;  // Shape::together() of them, and how many groups of these there are
  int group;             // rows of tiles that are walked together, so that their panels stay in the L2 cache
  bool triangle;         // SplitPlan::triangle
  // Blocks take work tiles in turn: tiles, and of those from `whole` on, which are left over, one of `parts` parts.
  int work_tiles, whole, parts;
  bool down;             // neighbours of d lie in a column
  bool quads, pairs;     // four, or two, neighbours of d, and of c if it is read, can be read and written at once
  bool cut_quads;        // quads, and rows of d begin within a sector of memory
  bool plain_alpha;      // of no extreme size
  bool batch_invariant;  // SplitPlan::batch_invariant
  // Elements are scaled, by an alpha of no extreme size, and added to the caller's c, and that is all.
  bool scaled_only;
  int promotion;  // sums leave the tensor cores every step of k (0) or every second one (1)
  // The guard's marks: for each tile, block of its cluster and warp, a bit for each slot that has masks; and the masks.
  uint32_t* marks;       // (tiles, 4, 8)
  uint16_t* masks;       // (tiles, 4, 256)
  uint32_t* words;       // of tiles with marks: (tiles, operand, 128)
  float* part_sums;      // (tiles left over, parts, a thread's sums / 4, 256) float4
  uint32_t* part_words;  // of A's rows, where they are found on the way: (tiles left over, parts, kPartWords)
  uint32_t* arrived;     // how many of a tile's parts are there

  // Where the words and records of a matrix of the batch begin.
  SGEMM_HOST_DEVICE int64_t first_row(const Operand& x, int64_t batch) const {
    return x.count == 1 ? 0 : batch * x.panels * kTile;
  }

  // A step of a panel; panels of all matrices are counted.
  template <class F>
  SGEMM_HOST_DEVICE char* panel(const Operand& x, int64_t index, int step) const {
    return x.planes + (index * steps + step) * kPairs<F> * kPanelBytes;
  }

  // k of one entry of the batch: the last slice may be shorter.
  SGEMM_HOST_DEVICE int64_t depth(int64_t batch) const {
    if (!k_slice) return p.k;
    const int64_t left = k_all - batch * k_slice;
    return left < k_slice ? left : k_slice;
  }
};

}  // namespace sgemm::split
