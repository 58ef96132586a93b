// The way of split_fp16x3_tall's sums to memory, through the guard.
#pragma once
#include "../common/activation.h"
#include "redone.cuh"
#include "tall_line.cuh"

namespace sgemm::split {

// Two neighbouring rows of a lane, of which `rows` are inside.
struct TallRows {
  int64_t row;
  int rows;
  uint32_t words[2];
  float scales[2];  // where they are plain
  float* to;        // D, there and in the first of the lane's columns of the panel
};

// A lane's sums on their way to D, through the guard.
class TallOutput {
 public:
  // `staged`: the warp's place for a tile on its way.
  __device__ __forceinline__ TallOutput(const TallJob& job, uint32_t entry, int64_t n0, float* staged)
      : job_(job),
        entry_(entry),
        staged_(staged),
        col0_(n0 + place_of(job.stores, threadIdx.x % 4, 0)),
        apart_(place_of(job.stores, 0, 1)),
        inside_(static_cast<int>(min(job.p.n - col0_, int64_t{job.cols}))),
        d_(job.p.d.data + job.p.d.batch.offset(entry) + col0_ * job.p.d.col) {}

  // The lane's of 16 rows from `first` on.
  __device__ __forceinline__ TallRows begin_tile(int64_t first, const uint32_t (&words)[2]) const {
    const int64_t row = first + in_tile();
    return {row,
            static_cast<int>(max(int64_t{0}, min(int64_t{2}, job_.p.m - row))),
            {words[0], words[1]},
            {job_.p.alpha * word_scale(words[0]), job_.p.alpha * word_scale(words[1])},
            d_ + row * job_.p.d.row};
  }

  // The lane's columns from `first` of the panel on, four of either row. `plain`: so are rows and columns.
  __device__ __forceinline__ void store(const TallRows& at, int first, const uint4& cols, bool plain,
                                        float (&x)[8]) const {
    if (__builtin_expect(plain, true))
      scale(at, cols, x);
    else
      certify(at, first, cols, x);
    if (__builtin_expect(job_.more, false)) {
      if (job_.p.beta != 0) add(at, first, x);
      activate(job_.p.activation, x);
    }
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

  // Behind the tile's last sums.
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
    __syncwarp();  // before the next tile's sums
  }

 private:
  // The first of the lane's columns of a panel, and of its rows of a tile.
  __device__ __forceinline__ int lane_col() const { return place_of(job_.stores, threadIdx.x % 4, 0); }
  __device__ __forceinline__ static int in_tile() { return static_cast<int>(threadIdx.x) % 32 / 4 * 2; }
  __device__ __forceinline__ bool inside(const TallRows& at, int first, int i) const {
    return i / 4 < at.rows && first + i % 4 * apart_ < inside_;
  }

  __device__ __forceinline__ static void scale(const TallRows& at, const uint4& cols, float (&x)[8]) {
    const float by[4] = {word_scale(cols.x), word_scale(cols.y), word_scale(cols.z), word_scale(cols.w)};
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= at.scales[i / 4] * by[i % 4];
  }

  // With a test of each element, and whatever the scales. What the guard doesn't certify is computed again.
  __device__ __forceinline__ void certify(const TallRows& at, int first, const uint4& cols, float (&x)[8]) const {
    const uint32_t words[4] = {cols.x, cols.y, cols.z, cols.w};
    uint32_t failed = 0;  // a bit an element
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const RowScale left = unpack(at.words[i / 4]), right = unpack(words[i % 4]);
      const bool certain = fabsf(x[i]) >= left.threshold + right.threshold;
      if (!certain && inside(at, first, i)) failed |= 1u << i;
      x[i] = job_.p.alpha * (x[i] * (left.first * right.first) * (left.second * right.second));
    }
    if (failed) redo(at, first, failed, x);
    const uint32_t count = __reduce_add_sync(~0u, __popc(failed));
    if (count && threadIdx.x % 32 == 0) atomicAdd(&redone_elements, static_cast<unsigned long long>(count));
  }

  // Computes all of the lane's elements, which costs little more than one, and takes those that failed.
  __device__ __forceinline__ void redo(const TallRows& at, int first, uint32_t failed, float (&x)[8]) const {
    const ConstMatrix a = job_.p.a.matrix(entry_), b = job_.p.b.matrix(entry_);
    const float* const upper = a.at(at.row, 0);
    const float* const lower = at.rows > 1 ? upper + a.row : upper;
    const float* from[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) from[e] = b.at(0, col0_ + min(first + e * apart_, inside_ - 1));
    float sums[8] = {};
#pragma unroll 1
    for (int64_t q = 0; q < job_.p.k; ++q) {
      const float of_row[2] = {upper[q * a.col], lower[q * a.col]};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float of_col = from[e][q * b.row];
        sums[e] = fmaf(of_row[0], of_col, sums[e]);
        sums[4 + e] = fmaf(of_row[1], of_col, sums[4 + e]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (failed >> i & 1) x[i] = job_.p.alpha * sums[i];
  }

  __device__ __forceinline__ void add(const TallRows& at, int first, float (&x)[8]) const {
    const float* const from = job_.p.c.matrix(entry_).at(at.row, col0_ + first);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (inside(at, first, i))
        x[i] = fmaf(job_.p.beta, from[i / 4 * job_.p.c.row + i % 4 * apart_ * job_.p.c.col], x[i]);
  }

  const TallJob& job_;
  const uint32_t entry_;
  float* const staged_;
  const int64_t col0_;  // the lane's first
  const int apart_;     // its columns
  const int inside_;    // of the panel, from there on
  float* const d_;
};

}  // namespace sgemm::split
