// A tile of C: its place, the order of tiles, and the way of its sums to memory through the guard.
#pragma once
#include "../common/activation.h"
#include "format.cuh"
#include "job.h"

namespace sgemm::split {

constexpr int kConsumers = 256;  // threads that hold a tile's sums, 64 each

struct TileIndex {
  int batch, row, col;
};

// Tiles in an order in which neighbours share panels: `group` rows of tiles, column by column.
__device__ __forceinline__ TileIndex tile_at(const Job& job, int t) {
  const int of_matrix = job.a.tiles * job.b.tiles;
  const int in_matrix = t % of_matrix, of_group = job.group * job.b.tiles;
  const int first = in_matrix / of_group * job.group, height = min(job.a.tiles - first, job.group);
  const int in_group = in_matrix % of_group;
  return {t / of_matrix, first + in_group % height, in_group / height};
}

// Where an accumulator's element lies in the tile: `t` counts the consumers' threads, `e` the thread's elements.
__device__ __forceinline__ int element_row(int t, int e) { return t / 32 * 16 + t % 32 / 4 + e / 2 % 2 * 8; }
__device__ __forceinline__ int element_col(int t, int e) { return e / 4 * 8 + t % 4 * 2 + e % 2; }

// A tile's sums on their way to D. The block finishes `quarters` of each thread's elements from `first_quarter` on.
struct TileOutput {
  const Job& job;
  const TileIndex tile;
  const int t, first_quarter, quarters;
  Matrix d;
  ConstMatrix c;
  int64_t row0, col0;  // of the thread's first element
  RowScale rows[2];

  __device__ __forceinline__ TileOutput(const Job& job, const TileIndex& tile, const uint32_t (&words)[2][kTile], int t,
                                        int first_quarter, int quarters)
      : job(job),
        tile(tile),
        t(t),
        first_quarter(first_quarter),
        quarters(quarters),
        d(job.p.d.matrix(tile.batch)),
        c(job.p.c.matrix(tile.batch)),
        row0(int64_t{tile.row} * kTile + element_row(t, 0)),
        col0(int64_t{tile.col} * kTile + element_col(t, 0)),
        rows{unpack(words[0][element_row(t, 0)]), unpack(words[0][element_row(t, 2)])} {}

  __device__ __forceinline__ bool finishes(int quarter) const {
    return quarter >= first_quarter && quarter < first_quarter + quarters;
  }

  // All of the tile is inside, and its pairs of neighbours can be stored at once, as they are when scaled.
  __device__ __forceinline__ bool plain() const {
    return job.p.beta == 0 && d.col == 1 && d.row % 2 == 0 && reinterpret_cast<uintptr_t>(d.data) % 8 == 0 &&
           (tile.row + 1) * int64_t{kTile} <= d.rows && (tile.col + 1) * int64_t{kTile} <= d.cols;
  }

  __device__ __forceinline__ float value(float sum, const RowScale& row, const RowScale& col) const {
    return job.p.alpha * (sum * (row.first * col.first) * (row.second * col.second));
  }

  __device__ __forceinline__ void put(int64_t i, int64_t j, float value,
                                      Activation activation = Activation::kNone) const {
    if (!d.contains(i, j)) return;
    if (job.p.beta != 0) value += job.p.beta * *c.at(i, j);
    *d.at(i, j) = activated(activation, value);
  }

  __device__ __forceinline__ void store_pairs(const float (&sum)[64], const uint32_t (&words)[kTile]) const {
    float* upper = d.at(row0, col0);
    float* lower = d.at(row0 + 8, col0);
#pragma unroll
    for (int e = 0; e < 64; e += 4) {
      if (!finishes(e / 16)) continue;
      const int j = e / 4 * 8;
      const RowScale left = unpack(words[element_col(t, e)]), right = unpack(words[element_col(t, e + 1)]);
      *reinterpret_cast<float2*>(upper + j) = {value(sum[e], rows[0], left), value(sum[e + 1], rows[0], right)};
      *reinterpret_cast<float2*>(lower + j) = {value(sum[e + 2], rows[1], left), value(sum[e + 3], rows[1], right)};
    }
  }

  // With C and an activation, whose code is long: so `sum` is indexed at run time.
  __device__ __forceinline__ void store_activated(const float* sum, const uint32_t (&words)[kTile]) const {
#pragma unroll 2
    for (int e = first_quarter * 16; e < (first_quarter + quarters) * 16; e += 4) {
      const RowScale left = unpack(words[element_col(t, e)]), right = unpack(words[element_col(t, e + 1)]);
      float x[4] = {value(sum[e], rows[0], left), value(sum[e + 1], rows[0], right), value(sum[e + 2], rows[1], left),
                    value(sum[e + 3], rows[1], right)};
      const auto at = [&](const auto& matrix, int i) { return matrix.at(row0 + i / 2 * 8, col0 + e / 4 * 8 + i % 2); };
      const auto inside = [&](int i) { return d.contains(row0 + i / 2 * 8, col0 + e / 4 * 8 + i % 2); };
      if (job.p.beta != 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (inside(i)) x[i] += job.p.beta * *at(c, i);
      }
      activate(job.p.activation, x);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (inside(i)) *at(d, i) = x[i];
    }
  }

  __device__ __forceinline__ void store_each(const float (&sum)[64], const uint32_t (&words)[kTile]) const {
#pragma unroll
    for (int e = 0; e < 64; e += 2) {
      if (!finishes(e / 16)) continue;
      const int64_t i = row0 + e / 2 % 2 * 8, j = col0 + e / 4 * 8;
      put(i, j, value(sum[e], rows[e / 2 % 2], unpack(words[element_col(t, e)])));
      put(i, j + 1, value(sum[e + 1], rows[e / 2 % 2], unpack(words[element_col(t, e + 1)])));
    }
  }

  // Tests each element, stores those that pass, and leaves the others as they are, with masks. Returns the warp's mark.
  __device__ __forceinline__ uint32_t store_certified(const float* sum, const uint32_t (&words)[kTile],
                                                      int index) const {
    if (job.p.activation != Activation::kNone && !__any_sync(~0u, has_threshold(words))) {
      store_activated(sum, words);
      return 0;
    }
    uint32_t marked = 0;
#pragma unroll 1
    for (int quarter = first_quarter; quarter < first_quarter + quarters; ++quarter) {
      uint32_t mask = 0;
#pragma unroll 1
      for (int e = 0; e < 16; ++e) {
        const int at = quarter * 16 + e;
        const RowScale row = e / 2 % 2 ? rows[1] : rows[0], col = unpack(words[element_col(t, at)]);
        const int64_t i = row0 + e / 2 % 2 * 8, j = col0 + element_col(0, at);
        if (fabsf(sum[at]) >= row.threshold + col.threshold)
          put(i, j, value(sum[at], row, col), job.p.activation);
        else if (d.contains(i, j))
          mask |= 1u << e;
      }
      if (!__any_sync(~0u, mask)) continue;
      job.masks[(int64_t{index} * 4 + quarter) * kConsumers + t] = static_cast<uint16_t>(mask);
      marked += (__reduce_add_sync(~0u, __popc(mask)) << 8) | 1u << quarter;
    }
    return marked;
  }

  // Whether one of the thread's rows and columns has a threshold: without it every element is certified. As an integer,
  // a word with a threshold above zero, or NaN, is larger than an exponent alone, and one with -Inf is negative.
  __device__ __forceinline__ bool has_threshold(const uint32_t (&cols)[kTile]) const {
    int most = 0;
#pragma unroll
    for (int e = 0; e < 64; e += 4)
      most = max(most, max(static_cast<int>(cols[element_col(t, e)]), static_cast<int>(cols[element_col(t, e + 1)])));
    return most > 0xff || !(rows[0].threshold <= 0 && rows[1].threshold <= 0);
  }

  // Whether the sums are to be looked at one by one.
  __device__ __forceinline__ bool uncertain(const uint32_t (&words)[2][kTile]) const {
    return job.p.activation != Activation::kNone || has_threshold(words[1]);
  }
};

}  // namespace sgemm::split
