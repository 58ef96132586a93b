// The epilogue of split_fp16x3_tall: the guard, scales, C, the activation and the store.
#pragma once
#include "../../epilogue/epilogue.cuh"
#include "../../gpu/hopper.cuh"
#include "../../gpu/ptx/min_max.cuh"
#include "../../gpu/warp_scan.cuh"
#include "../guard/guard.cuh"
#include "../redo/chains.cuh"
#include "tall_line.cuh"

namespace sgemm::split {

// A lane's two neighbouring rows, of which `rows` are inside D.
struct TallRows {
  int64_t row;
  int rows;
  RowScale row_scales[2];
  float scales[2];  // valid where the scales are plain
  float* to;        // D at these rows and the lane's first column of the panel
};

// A warp's shared memory for its current tile.
struct TallWarp {
  alignas(8) float rows_of_others[TallTile::kRows];  // thresholds, as left by split_rows()
  TallEntry uncertified;                             // valid if an element is uncertain
};

// Notes which elements failed in the group of columns from `first` on; `failed` has a bit for each of the lane's
// elements. Returns true if they may be listed and are few enough: then the group can be stored. The function is not
// inlined, because its code would cost registers in the kernel's loop.
static __device__ __noinline__ bool note_uncertain(TallEntry& entry, int first, uint32_t failed, bool may_list) {
  const int lane = threadIdx.x % 32, row = lane / 4 * 2;
  __syncwarp();
  uint32_t count = entry.count;
  const bool few = may_list && count + __reduce_add_sync(~0u, __popc(failed)) <= TallEntry::kMostElements;
  if (!few) failed = 0;
#pragma unroll 1
  for (uint32_t lanes; (lanes = __ballot_sync(~0u, failed)) != 0; ++count) {
    if (lane != __ffs(lanes) - 1) continue;
    const int i = __ffs(failed) - 1;
    entry.elements[count] =
        static_cast<uint16_t>((row + i / 4) << TallEntry::kColumnBits | (first + lane % 4 * 4 + i % 4));
    failed &= failed - 1;
  }
  __syncwarp();
  if (lane == 0) {
    if (few)
      entry.count = count;
    else
      entry.groups |= uint64_t{1} << first / TallTile::kCols;
  }
  return few;
}

// Certifies a lane's sums, scales and stores them.
class TallEpilogue {
 public:
  // `staged`: the warp's shared memory for a tile that is staged.
  __device__ __forceinline__ TallEpilogue(const TallJob& job, uint32_t entry, int64_t n0, float* staged,
                                          TallWarp& shared)
      : job_(job),
        entry_(entry),
        staged_(staged),
        shared_(shared),
        col0_(n0 + place_of(job.stores, threadIdx.x % 4, 0)),
        apart_(place_of(job.stores, 0, 1)),
        inside_(static_cast<int>(min(job.p.n - col0_, int64_t{job.cols}))),
        d_(job.p.d.data + job.p.d.batch.offset(entry) + col0_ * job.p.d.col) {}

  // Returns true if alpha and all scales of the warp's rows and the panel's columns are plain. `of_cols`: columns'
  // scales are.
  __device__ __forceinline__ bool plain_scales(const RowScale (&row_scales)[2], bool of_cols) const {
    return __all_sync(~0u, job_.plain && of_cols && has_plain_scale(row_scales[0]) && has_plain_scale(row_scales[1]));
  }

  // Returns the lane's two of the 16 rows from `first` on.
  __device__ __forceinline__ TallRows begin_tile(int64_t first, const RowScale (&row_scales)[2]) const {
    const int64_t row = first + in_tile();
    return {row,
            static_cast<int>(max(int64_t{0}, min(int64_t{2}, job_.p.m - row))),
            {row_scales[0], row_scales[1]},
            {job_.p.alpha * factor_of(row_scales[0]), job_.p.alpha * factor_of(row_scales[1])},
            d_ + row * job_.p.d.row};
  }

  // Scales the lane's sums of a group of columns, four of either row, to alpha times their values. `cols`: the columns'
  // row scales. Precondition: rows and columns are plain.
  __device__ __forceinline__ static void scale(const TallRows& at, const uint4& cols, float (&x)[8]) {
    const float by[4] = {factor_of(cols.x), factor_of(cols.y), factor_of(cols.z), factor_of(cols.w)};
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= at.scales[i / 4] * by[i % 4];
  }

  // Tests each sum and scales it, for any scales. Returns a bit for each element that failed. `row_scales` and
  // `of_others` are those of the lane's columns.
  __device__ __forceinline__ uint32_t certify(const TallRows& at, int first, const RowScale* row_scales,
                                              const float* of_others, bool some_small, bool plain_scales,
                                              float (&x)[8]) const {
    uint32_t failed = 0;
    bool certified = true;
    const float2 of_rows = *reinterpret_cast<const float2*>(&shared_.rows_of_others[in_tile()]);
    const float most = some_small ? fmaxf(of_rows.x, of_rows.y) : INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t left = at.row_scales[i / 4], right = row_scales[i % 4];
      certified = certified && fabsf(x[i]) >= threshold_of(left) + hopper::min_or_nan(threshold_of(right), most);
    }
    if (!__all_sync(~0u, certified)) failed = uncertified(at, first, row_scales, of_others, some_small, x);
    if (plain_scales) {
      scale(at, *reinterpret_cast<const uint4*>(row_scales), x);
    } else {
      int of_alpha;
      const float alpha = frexpf(job_.p.alpha, &of_alpha);
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {  // rare, so the loop is not unrolled
        const int exponent = exponent_of(i < 4 ? at.row_scales[0] : at.row_scales[1]) + exponent_of(row_scales[i % 4]);
        float value = x[0];
#pragma unroll
        for (int e = 1; e < 8; ++e) value = e == i ? x[e] : value;
        if (isinf(unscaled(value, exponent)) && !surely_overflows(value, exponent) && inside(at, first, i))
          failed |= 1u << i;
        value = unscaled(alpha * value, exponent + of_alpha);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] = e == i ? value : x[e];
      }
    }
    return failed;
  }

  // Recomputes the warp's failed elements, one after the other, as alpha times their products. Earlier pieces of k,
  // which lie in memory before the operands, are included.
  __device__ __forceinline__ void redo_elements(const TallRows& at, int first, uint32_t failed, float (&x)[8]) const {
    const int64_t before = job_.p.k_before;
    const ConstMatrix a = job_.p.a.matrix(entry_), b = job_.p.b.matrix(entry_);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t lanes; (lanes = __ballot_sync(~0u, failed)) != 0;) {
      const int owner = __ffs(lanes) - 1, i = __shfl_sync(~0u, __ffs(failed) - 1, owner);
      const int64_t row = __shfl_sync(~0u, at.row, owner) + i / 4;
      const int64_t col = __shfl_sync(~0u, col0_, owner) + first + i % 4 * apart_;
      const float sum =
          element_of_chains({{a.at(row, -before)}, a.col}, {{b.at(-before, col)}, b.row}, before + job_.p.k);
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (lane == owner && e == i) x[e] = job_.p.alpha * sum;
      if (lane == owner) failed &= failed - 1;
    }
  }

  // Calls note_uncertain() for the tile's columns from `first` on.
  __device__ __forceinline__ bool note(uint32_t tile, int first, uint32_t failed, bool is_first) const {
    __syncwarp();
    if (is_first && threadIdx.x % 32 == 0) shared_.uncertified = {0, tile, 0, {}};
    return note_uncertain(shared_.uncertified, first, failed, !job_.more && !is_staged(job_.stores));
  }

  // Writes a tile with noted elements to a list. A staged tile is redone as a whole.
  __device__ __forceinline__ void list(TallEntry& to) const {
    __syncwarp();
    TallEntry entry = shared_.uncertified;
    if (is_staged(job_.stores)) entry.groups = ~uint64_t{0};
    if (threadIdx.x % 32 == 0) to = entry;
  }

  // Recomputes listed elements of up to 32 tiles; lane i has tile i's `count`. Eight elements of any tiles are computed
  // at a time: four lanes share an element, with a chain each.
  __device__ __forceinline__ void redo_elements(const TallEntry* list, uint32_t count) const {
    static_assert(kMostTallDepth == 4 * kChain);
    const ConstMatrix a = job_.p.a.matrix(entry_), b = job_.p.b.matrix(entry_);
    const int lane = threadIdx.x % 32, depth = static_cast<int>(job_.p.k);
    const uint32_t end = inclusive_sum(count);  // end of the lane's tile among all elements
    const uint32_t all = __shfl_sync(~0u, end, 31);
#pragma unroll 1
    for (uint32_t first = 0; first < all; first += 8) {
      const uint32_t index = first + lane / 4;
      const bool active = index < all;
      uint32_t owner = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t before = __popc(__ballot_sync(~0u, end <= first + i));
        if (lane / 4 == i && active) owner = before;
      }
      const uint32_t place = index - __shfl_sync(~0u, end - count, owner);
      const TallEntry& entry = list[owner];
      const uint32_t element = active ? entry.elements[place] : 0;
      const int scale = element % (1u << TallEntry::kColumnBits);  // place of the column's scale in the panel
      const int64_t row = int64_t{entry.tile} * TallTile::kRows + (element >> TallEntry::kColumnBits);
      const int64_t col = col0_ - lane_col() + scale / TallTile::kCols * TallTile::kCols +
                          place_of(job_.stores, scale % TallTile::kCols / 4, scale % 4);
      const float *const from_a = a.at(row, 0), *const from_b = b.at(0, col);
      float chain = 0;
#pragma unroll 8
      for (int i = 0; i < kChain; ++i) {
        const int q = lane % 4 * kChain + i;
        if (active && q < depth) chain = fmaf(from_a[q * a.col], from_b[q * b.row], chain);
      }
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += __shfl_sync(~0u, chain, lane / 4 * 4 + i);
      // Sums that overflow, or have Inf, are computed one by one in order of k.
      for (uint32_t left = __ballot_sync(~0u, active && lane % 4 == 0 && !isfinite(sum)); left; left &= left - 1) {
        const int of = __ffs(left) - 1;
        const int64_t i = __shfl_sync(~0u, row, of), j = __shfl_sync(~0u, col, of);
        const float in_order = element_in_order({{a.at(i, 0)}, a.col}, {{b.at(0, j)}, b.row}, depth);
        if (lane == of) sum = in_order;
      }
      if (active && lane % 4 == 0) *job_.p.d.matrix(entry_).at(row, col) = job_.p.alpha * sum;
    }
  }

  // Computes the lane's eight elements of columns from `first` on, as chains of `length` products added up in order.
  __device__ __forceinline__ void add_chains(const TallRows& at, int first, int length, float (&sums)[8]) const {
    const ConstMatrix a = job_.p.a.matrix(entry_), b = job_.p.b.matrix(entry_);
    const int depth = static_cast<int>(job_.p.k);
    const float *rows[2], *cols[4];  // outside D, the last row or column again
#pragma unroll
    for (int i = 0; i < 2; ++i) rows[i] = a.at(min(at.row + i, job_.p.m - 1), 0);
#pragma unroll
    for (int j = 0; j < 4; ++j) cols[j] = b.at(0, min(col0_ + first + j * apart_, job_.p.n - 1));
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = 0;
#pragma unroll 1
    for (int q0 = 0; q0 < depth; q0 += length) {
      float chain[8] = {};
      const int end = min(q0 + length, depth);
#pragma unroll 4
      for (int q = q0; q < end; ++q)
#pragma unroll
        for (int i = 0; i < 8; ++i) chain[i] = fmaf(rows[i / 4][q * a.col], cols[i % 4][q * b.row], chain[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += chain[i];
    }
  }

  // Recomputes those of the values `x` that failed, then stores all, in columns from `first` on.
  __device__ __forceinline__ void redo_group(const TallRows& at, int first, uint32_t failed, float (&x)[8]) const {
    if (failed) {
      float sums[8], in_order[8];
      add_chains(at, first, kChain, sums);
      bool finite = true;
#pragma unroll
      for (int i = 0; i < 8; ++i) finite = finite && isfinite(sums[i]);
      if (!finite) add_chains(at, first, kMostTallDepth, in_order);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (failed >> i & 1) x[i] = job_.p.alpha * (isfinite(sums[i]) ? sums[i] : in_order[i]);
    }
    __syncwarp();
    failed = add(at, first, x);
    if (__any_sync(~0u, failed)) redo_elements(at, first, failed, x);
    store(at, first, x);
  }

  // Adds beta C to alpha times values. If C is the sum of earlier pieces of k, returns a bit for each sum that isn't
  // finite and may differ from the sum in order of k.
  __device__ __forceinline__ uint32_t add(const TallRows& at, int first, float (&x)[8]) const {
    uint32_t failed = 0;
    if (job_.p.beta != 0) {
      const float* const from = job_.p.c.matrix(entry_).at(at.row, col0_ + first);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (inside(at, first, i)) {
          const float c = from[i / 4 * job_.p.c.row + i % 4 * apart_ * job_.p.c.col], sum = add_c(job_.p, x[i], &c);
          if (may_differ_in_order(sum, x[i], c)) failed |= 1u << i;
          x[i] = sum;
        }
      if (job_.p.k_before == 0) failed = 0;
    }
    return failed;
  }

  // Applies the activation, then stores values in D, or in shared memory for end_tile().
  __device__ __forceinline__ void store(const TallRows& at, int first, float (&x)[8]) const {
    if (__builtin_expect(job_.more, false)) activate(job_.p.activation, x);
    float* const to = at.to + first * job_.p.d.col;
    if (job_.stores == TallStores::kQuads) {
      if (first < inside_ && at.rows > 0) hopper::store(to, make_float4(x[0], x[1], x[2], x[3]));
      if (first < inside_ && at.rows > 1) hopper::store(to + job_.p.d.row, make_float4(x[4], x[5], x[6], x[7]));
    } else if (job_.stores == TallStores::kPairs) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first + 4 * e < inside_ && at.rows > 0)
          hopper::store(to + 4 * e * job_.p.d.col, make_float2(x[e], x[4 + e]));
    } else if (is_staged(job_.stores)) {
      const bool tiles = job_.stores == TallStores::kTiles;
      const int apart = tiles ? static_cast<int>(job_.p.n) : 1, wide = tiles ? 1 : TallTile::kRows;
      float* const staged = staged_ + in_tile() * apart + (lane_col() + first) * wide;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first + 4 * e < inside_) {
          staged[4 * e * wide] = x[e];
          staged[4 * e * wide + apart] = x[4 + e];
        }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first + 4 * e < inside_) {
          if (at.rows > 0) to[4 * e * job_.p.d.col] = x[e];
          if (at.rows > 1) to[4 * e * job_.p.d.col + job_.p.d.row] = x[4 + e];
        }
    }
  }

  // Stores a staged tile, after its last sums.
  __device__ __forceinline__ void end_tile(const TallRows& at) const {
    if (!is_staged(job_.stores)) return;
    const int64_t first = at.row - in_tile();
    const int rows = static_cast<int>(min(job_.p.m - first, int64_t{TallTile::kRows})), lane = threadIdx.x % 32;
    const int cols = inside_ + lane_col();
    float* const to = d_ - lane_col() * job_.p.d.col + first * job_.p.d.row;
    __syncwarp();
    if (job_.stores == TallStores::kTiles) {
#pragma unroll 4
      for (int i = lane; i < rows * cols; i += 32) to[i] = staged_[i];
    } else {
      const int row = lane % TallTile::kRows;
#pragma unroll 4
      for (int col = lane / TallTile::kRows; col < cols; col += 2)
        if (row < rows) to[row + col * job_.p.d.col] = staged_[col * TallTile::kRows + row];
    }
    __syncwarp();  // all lanes have read before the next tile's sums are staged
  }

 private:
  // The lane's first column within a panel, and its first row within a tile.
  __device__ __forceinline__ int lane_col() const { return place_of(job_.stores, threadIdx.x % 4, 0); }
  __device__ __forceinline__ static int in_tile() { return static_cast<int>(threadIdx.x) % 32 / 4 * 2; }
  __device__ __forceinline__ bool inside(const TallRows& at, int first, int i) const {
    return i / 4 < at.rows && first + i % 4 * apart_ < inside_;
  }

  // Returns a bit for each of the lane's elements inside D that its own row's and column's sums don't certify either.
  __device__ __forceinline__ uint32_t uncertified(const TallRows& at, int first, const RowScale* row_scales,
                                                  const float* of_others, bool some_small, const float (&x)[8]) const {
    const float* const of_rows = &shared_.rows_of_others[in_tile()];
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t left = at.row_scales[i / 4], right = row_scales[i % 4];
      const float least = hopper::min_or_nan(threshold_of(left), of_others[i % 4]) +
                          hopper::min_or_nan(threshold_of(right), some_small ? of_rows[i / 4] : INFINITY);
      const bool certified = fabsf(x[i]) >= least || is_nan_of_operands(x[i], left, right);
      if (!certified && inside(at, first, i)) bits |= 1u << i;
    }
    return bits;
  }

  const TallJob& job_;
  const uint32_t entry_;
  float* const staged_;
  TallWarp& shared_;
  const int64_t col0_;  // the lane's first column
  const int apart_;     // distance of the lane's columns
  const int inside_;    // columns of the panel from col0_ on
  float* const d_;
};

}  // namespace sgemm::split
