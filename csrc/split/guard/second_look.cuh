// The guard's second look: tests elements that failed the first comparison against tighter bounds.
//
// Idea:   these elements are few and scattered. So a list in shared memory holds those of all of a warp's bands, and
//         each lane tests one: their reads from memory overlap. Most are certified. If very few are not, the warp
//         recomputes them here (chains.cuh), and the epilogue stores all elements alike.
// Order:  first the row statistics, then elements of A and B (guard.cuh).
#pragma once
#include "../../epilogue/staged_band.cuh"
#include "../../gpu/warp_scan.cuh"
#include "../plan/job.h"
#include "../redo/chains.cuh"
#include "../redo/redone.cuh"
#include "guard.cuh"

namespace sgemm::split {

constexpr uint32_t kListed = kStagedFloats;  // capacity of a list, which shares its memory with a staged band

// A list entry: an element's magnitude, with the mantissa cut to 13 bits, and its position in the warp's rows.
struct ListedElement {
  uint32_t bits;

  static __device__ __forceinline__ uint32_t place(int row, int col) { return row << 7 | col; }
  __device__ __forceinline__ int row() const { return bits >> 7 & 15; }
  __device__ __forceinline__ int col() const { return bits & 127; }
  __device__ __forceinline__ float magnitude() const { return __uint_as_float(bits >> 1 & ~0x3ffu); }
};

// Results in a list: kCertified if the element is certified, kRefused if it is refused, else the bits of a recomputed
// sum. Both constants are signaling NaNs, which no sum is.
constexpr uint32_t kCertified = 0xff000801, kRefused = 0x7f800801;
constexpr int64_t kDepthAtOnce = 4096;  // most k, summed over the elements that a warp recomputes at once

// Tests the list of `count` elements, by a warp: sets those that are certified to kCertified, and returns the number of
// the others. `row_scales`: scales and thresholds of the tile's rows and columns.
template <class Shape>
static __device__ __noinline__ uint32_t look_at_listed(const Job& job, TileIndex tile, const TileScales& row_scales,
                                                       int t, uint32_t* list, uint32_t count) {
  const int lane = t % 32;
  const uint32_t *const rows = &row_scales[0][Shape::warp_row(t)], *const cols = row_scales[1];
  const int64_t row0 = int64_t{tile.row} * Shape::kRows + Shape::warp_row(t), col0 = int64_t{tile.col} * Shape::kCols;
  const ElementMatrix a = matrix_of_a(job.p, tile.batch), b = matrix_of_b(job.p, tile.batch);
  const auto stats_of = [&](const Operand& x, int64_t first) {
    return x.row_stats + job.first_row(x, tile.batch) + first;
  };
  const uint32_t *const stats_a = stats_of(job.a, row0), *const stats_b = stats_of(job.b, col0);
  uint32_t left_over = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < count; first += 32) {
    const bool active = first + lane < count;
    const ListedElement x = {active ? list[first + lane] : 0};
    const uint32_t left = rows[x.row()], right = cols[x.col()];
    const GuardedRow of_row(left, stats_a + x.row(), job.a.all_stats);
    const GuardedRow of_col(right, stats_b + x.col(), job.b.all_stats);
    // NaN if no magnitude certifies the row or the column.
    const float of_scales = threshold_of(left) + threshold_of(right);
    const float least = isnan(of_scales) ? of_scales : least_certified(of_row, of_col);
    bool certified = x.magnitude() >= least || is_nan_of_operands(x.magnitude(), left, right);
    if (active && !certified && !isnan(least))
      certified =
          least_magnitude(a, b, row0 + x.row(), col0 + x.col(), of_row.place, of_col.place, left, right) >= least;
    if (active && certified) list[first + lane] = kCertified;
    left_over += __popc(__ballot_sync(~0u, active && !certified));
  }
  __syncwarp();
  return left_over;
}

// Recomputes an element, by a warp. This function computes the operands' addresses, because the callers' registers hold
// a tile's sums.
static __device__ __noinline__ float element_again(const Job& job, int batch, int64_t row, int64_t col) {
  const ElementMatrix a = matrix_of_a(job.p, batch), b = matrix_of_b(job.p, batch);
  return element_of_chains({a.at(row, 0), a.col}, {b.at(0, col), b.row}, job.depth(batch));
}

// Recomputes the `left_over` list elements that aren't certified, by a warp, if they are few. Otherwise sets them to
// kRefused.
template <class Shape>
static __device__ __noinline__ void redo_listed(const Job& job, TileIndex tile, const TileScales& row_scales, int t,
                                                uint32_t* list, uint32_t count, uint32_t left_over) {
  const int lane = t % 32;
  const int64_t row0 = int64_t{tile.row} * Shape::kRows + Shape::warp_row(t), col0 = int64_t{tile.col} * Shape::kCols;
  // After earlier pieces of k, this piece's sum is not the whole element.
  const bool at_once = left_over * job.depth(tile.batch) <= kDepthAtOnce && job.p.k_before == 0;
  uint32_t redone = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < count; first += 32) {
    const uint32_t own = first + lane < count ? list[first + lane] : kCertified;
    uint32_t now = own == kCertified ? kCertified : kRefused;
#pragma unroll 1
    for (uint32_t left = at_once ? __ballot_sync(~0u, own != kCertified) : 0; left; left &= left - 1) {
      const int of = __ffs(left) - 1;
      const ListedElement x = {__shfl_sync(~0u, own, of)};
      const float product = element_again(job, tile.batch, row0 + x.row(), col0 + x.col());
      // The scaled sum that gives this product, if a float holds it exactly.
      const int exponent =
          exponent_of(row_scales[0][Shape::warp_row(t) + x.row()]) + exponent_of(row_scales[1][x.col()]);
      const float sum = unscaled(product, -exponent);
      const bool exact = fabsf(sum) >= 0x1p-100f && fabsf(sum) < 0x1p100f;
      if (lane == of && exact) now = __float_as_uint(sum);
      redone += exact;
    }
    if (first + lane < count) list[first + lane] = now;
  }
  count_redone(redone_elements, lane == 0 ? redone : 0);
  __syncwarp();
}

// Tests the uncertified elements in `bands` of the warp's sums again, unless they are more than half of the warp's
// sums. Batch-invariant products always test them, because neighbours must not affect an element. Elements that are
// certified or recomputed are added to `sure`. The sum of a refused element becomes kRefused, unless it is NaN: a NaN
// may come from the operands.
template <class Shape>
__device__ __forceinline__ void look_again(const Job& job, const TileIndex& tile, const TileScales& row_scales,
                                           float (&sum)[Shape::kSums], uint32_t bands, int t, uint32_t* list,
                                           Certified<Shape::kSums>& sure) {
  const auto count = [&](uint32_t bands) {
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < sure.kCount; ++i) own += __popc(sure.uncertified(i, bands));
    return own;
  };
  const uint32_t all = __reduce_add_sync(~0u, count(bands));
  const bool looks = job.batch_invariant || all <= Shape::kSums * 32 / 2;
#pragma unroll 1
  while (bands) {
    const uint32_t some = !looks || all <= kListed ? bands : bands & -bands;
    bands &= ~some;
    // The list entries of a lane are contiguous.
    const uint32_t own = count(some);
    const uint32_t end = inclusive_sum(own), first = end - own;
    const uint32_t listed = __shfl_sync(~0u, end, 31);
    const auto each = [&](const auto& use) {
      uint32_t* at = list + first;
#pragma unroll
      for (int band = 0; band < Shape::kBands; ++band) {
        if (!(some >> band & 1)) continue;
#pragma unroll
        for (int e = band * 16; e < band * 16 + 16; ++e)
          if (!(sure.bits[e / 32] >> e % 32 & 1)) use(e, at++);
      }
    };
    if (looks) {
      // Always 0, but opaque to the compiler, which would otherwise hoist the list entries of all sums out of the loop
      // and hold them in registers.
      const uint32_t zero = listed >> 31;
      const uint32_t corner = ListedElement::place(t % 32 / 4, t % 4 * 2) + zero;
      each([&](int e, uint32_t* to) {
        const uint32_t magnitude = __float_as_uint(sum[e]) << (1 + zero) & ~0x7ffu;
        *to = magnitude + corner + ListedElement::place(e / 2 % 2 * 8, e / 4 * 8 + e % 2);
      });
      __syncwarp();
      const uint32_t left_over = look_at_listed<Shape>(job, tile, row_scales, t, list, listed);
      if (left_over > 0) redo_listed<Shape>(job, tile, row_scales, t, list, listed, left_over);
    }
    each([&](int e, const uint32_t* from) {
      const uint32_t now = looks ? *from : kRefused;
      if (now != kRefused) sure.bits[e / 32] |= 1u << e % 32;
      if (now != kCertified && (now != kRefused || !isnan(sum[e]))) sum[e] = __uint_as_float(now);
    });
    __syncwarp();
  }
}

}  // namespace sgemm::split
