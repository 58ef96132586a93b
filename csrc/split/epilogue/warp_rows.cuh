// WarpRows: scales a warp's accumulators, adds C, and stores them to D, in as few instructions as possible.
#pragma once
#include "../../epilogue/epilogue.cuh"
#include "../../epilogue/staged_band.cuh"
#include "../../gpu/hopper.cuh"
#include "../format/row_scale.cuh"
#include "../plan/job.h"

namespace sgemm::split {

// A warp's 16 rows of a tile, and their positions in C and D. A thread has N sums, 16 in each band of 32 columns.
class WarpRows {
 public:
  // `Shape`: the TileShape. `row_scales`: scales and thresholds of the tile's rows and columns. The block finishes the
  // `cols` columns from `first` on.
  template <class Shape>
  __device__ __forceinline__ WarpRows(Shape, const Job& job, const TileIndex& tile, const TileScales& row_scales,
                                      int first, int cols, int t)
      : job_(job),
        row_scales_(row_scales),
        rows_(&row_scales[0][Shape::warp_row(t)]),
        cols_(row_scales[1]),
        first_(first),
        share_(cols),
        t_(t),
        tile_(tile),
        row0_(int64_t{tile.row} * Shape::kRows + Shape::warp_row(t)),
        col0_(int64_t{tile.col} * Shape::kCols),
        rows_left_(static_cast<int>(min(job.p.m - row0_, int64_t{16}))),
        cols_left_(static_cast<int>(min(job.p.n - col0_, int64_t{Shape::kCols}))),
        bands_(bits(first / 32, (max(first, min(first + cols, cols_left_)) + 31) / 32)),
        d_(job.p.d.matrix(tile.batch).at(row0_, col0_)),
        c_(job.p.beta == 0 ? nullptr : job.p.c.matrix(tile.batch).at(row0_, col0_)) {}

 protected:
  // Stores the bands in `bands`, whose sums need no test, straight from the accumulators if D's layout allows it.
  template <int N>
  __device__ __forceinline__ void store_direct(const float (&sum)[N], uint32_t bands, float* staging) const {
    if (job_.stores == StoreMode::kColMajor)
      store_col_major(sum, bands);
    else if (stores_pairs(job_.stores))
      store_pairs<false>(sum, bands);
    else
      store_singles(sum, bands, staging);
  }

  template <bool WHOLE, int N>
  __device__ __forceinline__ void store_pairs(const float (&sum)[N], uint32_t bands) const {
    const int lane = t_ % 32, r = lane / 4, j = lane % 4 * 2;
    const float upper = job_.p.alpha * factor_of(rows_[r]), lower = job_.p.alpha * factor_of(rows_[r + 8]);
    const float beta = job_.p.beta;
    float* const to = d_ + r * job_.p.d.row + j;
    float* const below = to + 8 * job_.p.d.row;
    const float* const from = c_ + r * job_.p.c.row + j;
    const float* const from_below = from + 8 * job_.p.c.row;
#pragma unroll
    for (int band = 0; band < N / 16; ++band) {
      if (!(bands >> band & 1)) continue;
      Scaled s[4];  // D may be C: all elements are read before the first is written
      bool in_x[4], in_y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = band * 32 + i * 8;
        in_x[i] = WHOLE || (r < rows_left_ && inside(col + j));
        in_y[i] = WHOLE || (r + 8 < rows_left_ && inside(col + j));
        s[i] = scaled(sum, band, i, j, upper, lower);
      }
      if (beta != 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int col = band * 32 + i * 8;
          float2 add = {}, add_below = {};
          if (in_x[i]) add = *reinterpret_cast<const float2*>(from + col);
          if (in_y[i]) add_below = *reinterpret_cast<const float2*>(from_below + col);
          s[i].x = add_c(beta, add, s[i].x);
          s[i].y = add_c(beta, add_below, s[i].y);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = band * 32 + i * 8;
        if (in_x[i]) hopper::store(to + col, s[i].x);
        if (in_y[i]) hopper::store(below + col, s[i].y);
      }
    }
  }

  // Stores quads, for rows that begin within a memory sector: pairs would write a sector in two parts. Two lanes
  // exchange the pairs that they have in twice eight columns, so that each has a quad. 16 neighbours of a row are
  // written at once.
  template <int N>
  __device__ __forceinline__ void store_quads(const float (&sum)[N]) const {
    const int lane = t_ % 32, r = lane / 4, j = lane % 4 * 2;
    const float upper = job_.p.alpha * factor_of(rows_[r]), lower = job_.p.alpha * factor_of(rows_[r + 8]);
    const float beta = job_.p.beta;
    const bool second = lane % 2;  // the second of the two lanes
    const int own_col = lane % 2 * 8 + lane % 4 / 2 * 4;
    float* const to = d_ + r * job_.p.d.row + own_col;
    const float* const from = c_ + r * job_.p.c.row + own_col;
    const auto store = [&](const float2& left, const float2& right, int64_t to_row, int64_t from_row, int col) {
      const float2 give = second ? left : right, keep = second ? right : left;
      const float2 got = {__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1)};
      float x[4] = {keep.x, keep.y, got.x, got.y};
      if (second) x[0] = got.x, x[1] = got.y, x[2] = keep.x, x[3] = keep.y;
      if (beta != 0) {
        const float4 add = *reinterpret_cast<const float4*>(from + from_row + col);
        add_c(beta, {add.x, add.y, add.z, add.w}, x);
      }
      hopper::store(to + to_row + col, make_float4(x[0], x[1], x[2], x[3]));
    };
#pragma unroll
    for (int band = 0; band < N / 16; ++band) {
      if (!(bands_ >> band & 1)) continue;
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const Scaled left = scaled(sum, band, i, j, upper, lower), right = scaled(sum, band, i + 1, j, upper, lower);
        store(left.x, right.x, 0, 0, band * 32 + i * 8);
        store(left.y, right.y, 8 * job_.p.d.row, 8 * job_.p.c.row, band * 32 + i * 8);
      }
    }
  }

  // Stores to D with contiguous columns: eight lanes write a sector.
  template <int N>
  __device__ __forceinline__ void store_col_major(const float (&sum)[N], uint32_t bands) const {
    const int lane = t_ % 32, r = lane / 4, j = lane % 4 * 2;
    const float upper = job_.p.alpha * factor_of(rows_[r]), lower = job_.p.alpha * factor_of(rows_[r + 8]);
    const int64_t apart = job_.p.d.col;
#pragma unroll
    for (int band = 0; band < N / 16; ++band) {
      if (!(bands >> band & 1)) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = band * 32 + i * 8 + j;
        const Scaled s = scaled(sum, band, i, j, upper, lower);
        float* const to = d_ + r + col * apart;
        const float* const from = job_.p.beta == 0 ? nullptr : c_ + r * job_.p.c.row + col * job_.p.c.col;
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const auto store = [&](int row, float sum) {
            if (r + row < rows_left_ && inside(col + x))
              to[row + x * apart] = add_c(job_.p, sum, from + row * job_.p.c.row + x * job_.p.c.col);
          };
          store(0, x == 0 ? s.x.x : s.x.y);
          store(8, x == 0 ? s.y.x : s.y.y);
        }
      }
    }
  }

  // Stores element by element, through shared memory, if two neighbours can't be stored at once. Each lane has a
  // column.
  template <int N>
  __device__ __forceinline__ void store_singles(const float (&sum)[N], uint32_t bands, float* staging) const {
    const int lane = t_ % 32, r = lane / 4, j = lane % 4 * 2;
    const float upper = job_.p.alpha * factor_of(rows_[r]), lower = job_.p.alpha * factor_of(rows_[r + 8]);
    const float beta = job_.p.beta;
    const float* const staged = staging + lane % 4;
#pragma unroll
    for (int band = 0; band < N / 16; ++band) {
      if (!(bands >> band & 1)) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Scaled s = scaled(sum, band, i, j, upper, lower);
        stage_pairs(s.x, s.y, i, staging, lane);
      }
      __syncwarp();
      const int col = band * 32 + lane, rows = rows_of(col);
      float* to = d_ + col * job_.p.d.col;
      if (beta == 0) {
#pragma unroll
        for (int row = 0; row < 16; ++row, to += job_.p.d.row)
          if (row < rows) *to = staged[place_in_band(row, lane / 4)];
      } else {
        const float* from = c_ + col * job_.p.c.col;
#pragma unroll 1
        for (int row = 0; row < rows; ++row, to += job_.p.d.row, from += job_.p.c.row)
          *to = add_c(job_.p, staged[place_in_band(row, lane / 4)], from);
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ int rows_of(int col) const { return inside(col) ? rows_left_ : 0; }
  __device__ __forceinline__ bool inside(int col) const { return col < cols_left_; }
  const Job& job_;
  const TileScales& row_scales_;
  const uint32_t *rows_, *cols_;  // scales and thresholds of the warp's rows and columns
  const int first_, share_, t_;
  const TileIndex tile_;
  const int64_t row0_, col0_;  // the warp's first row and column
  const int rows_left_, cols_left_;
  const uint32_t bands_;  // bands that the block finishes, a bit each
  float* d_;              // the elements of D and C at (row0_, col0_)
  const float* c_;

 private:
  // Bits `first` to `last` - 1.
  __device__ __forceinline__ static uint32_t bits(int first, int last) { return (1u << last) - (1u << first); }

  // A thread's two neighbouring accumulators in row r (x) and in row r + 8 (y), in a band's i-th eight columns.
  struct Scaled {
    float2 x, y;
  };
  template <int N>
  __device__ __forceinline__ Scaled scaled(const float (&sum)[N], int band, int i, int j, float upper,
                                           float lower) const {
    const uint2 row_scales = *reinterpret_cast<const uint2*>(&cols_[band * 32 + i * 8 + j]);
    const float left = factor_of(row_scales.x), right = factor_of(row_scales.y);
    const float* four = &sum[band * 16 + i * 4];
    return {{four[0] * (upper * left), four[1] * (upper * right)},
            {four[2] * (lower * left), four[3] * (lower * right)}};
  }
};

}  // namespace sgemm::split
