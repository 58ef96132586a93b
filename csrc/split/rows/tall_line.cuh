// Lines of split_fp16x3_tall, rows of A and columns of B: a lane reads, scales and splits its part of them.
#pragma once
#include "../../gpu/ptx/mma.cuh"
#include "../format/planes.cuh"
#include "../format/row_scale.cuh"
#include "tall_tile.h"

namespace sgemm::split {

// Returns the place of the e-th of a lane's four elements among 16 of k, or 16 columns. The place depends on how
// elements are read or stored.
template <class How>
__device__ __forceinline__ int place_of(How how, int t, int e) {
  return how == How::kQuads ? 4 * t + e : 4 * e + t;
}

// A lane's elements of a line, a row of A or a column of B: a quarter of the line.
template <int STEPS>
using LineElements = float[STEPS][4];

__device__ __forceinline__ float4 scaled(const float (&x)[4], float factor) {
  return make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
}

// A lane's planes of two rows, in the order of a tensor core's operand.
template <int STEPS>
struct RowPlanes {
  uint32_t hi[2][STEPS][2], lo[2][STEPS][2];

  // Splits row h, times `factor`.
  __device__ __forceinline__ void split(int h, const LineElements<STEPS>& x, float factor, SmallestHalves& smallest) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const QuadPlanes<Fp16x3> planes(scaled(x[s], factor));
      hi[h][s][0] = planes.xy[0];
      hi[h][s][1] = planes.zw[0];
      lo[h][s][0] = planes.xy[1];
      lo[h][s][1] = planes.zw[1];
      smallest.add(planes.xy[0]);
      smallest.add(planes.zw[0]);
    }
  }
};

// Reads a lane's elements of 16 rows. `from` is the first; from there on `rows` rows and `k` of k are inside A.
// Elements beyond are zeros.
template <TallReads READS, int STEPS>
__device__ __forceinline__ void read_rows(LineElements<STEPS> (&x)[2], const float* from, const ConstMatrix& a,
                                          int64_t rows, int k) {
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    if constexpr (READS == TallReads::kQuads) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float4 quad = {};
        if (h < rows && s * TallTile::kStep < k)
          quad = *reinterpret_cast<const float4*>(from + h * a.row + s * TallTile::kStep);
        x[h][s][0] = quad.x;
        x[h][s][1] = quad.y;
        x[h][s][2] = quad.z;
        x[h][s][3] = quad.w;
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e, from += 4 * a.col) {
        const bool inside = s * TallTile::kStep + 4 * e < k;
        if constexpr (READS == TallReads::kPairs) {
          float2 pair = {};
          if (rows > 0 && inside) pair = *reinterpret_cast<const float2*>(from);
          x[0][s][e] = pair.x;
          x[1][s][e] = pair.y;
        } else {
          x[0][s][e] = rows > 0 && inside ? *from : 0.0f;
          x[1][s][e] = rows > 1 && inside ? from[a.row] : 0.0f;
        }
      }
    }
  }
}

// Reduces over lanes 4 g ... 4 g + 3, which share a line.
template <class T, class Op>
__device__ __forceinline__ T of_quad(T x, const Op& op) {
  x = op(x, __shfl_xor_sync(~0u, x, 2));
  return op(x, __shfl_xor_sync(~0u, x, 1));
}

template <class T>
__device__ __forceinline__ T sum_of_quad(T x) {
  return of_quad(x, [](T a, T b) { return a + b; });
}

// Returns the bits of a line's largest magnitude.
template <int STEPS>
__device__ __forceinline__ uint32_t largest_magnitude(const LineElements<STEPS>& x) {
  float largest = 0;
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
    largest = larger_or_nan(largest, larger_or_nan(larger_or_nan(x[s][0], x[s][1]), larger_or_nan(x[s][2], x[s][3])));
  return __float_as_uint(of_quad(largest, larger_or_nan));
}

// Returns true if one of the lane's elements loses accuracy by its line's scale.
template <int STEPS>
__device__ __forceinline__ bool some_small(const LineElements<STEPS>& x, int exponent) {
  Magnitudes own;
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int e = 0; e < 4; ++e) own.take(x[s][e]);
  return own.some_small<Fp16x3>(exponent);
}

// Statistics of a line: the number of elements that lose accuracy by its scale, and the sum of its scaled magnitudes.
struct LineGuard {
  uint32_t small;
  float sum;
};
template <int STEPS>
__device__ __forceinline__ LineGuard line_guard(const LineElements<STEPS>& x, float factor) {
  LineGuard own = {};  // of the lane's elements
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      own.small += is_small<Fp16x3>(x[s][e], x[s][e] * factor);
      own.sum += fabsf(x[s][e] * factor);
    }
  return {sum_of_quad(own.small), sum_of_quad(own.sum)};
}

// Splits the lane's two rows and finds their row scales. Returns true if one of the warp's 16 rows has
// small elements. Then `of_others` has each row's threshold for the other operand's small elements; a lane reads only
// its own rows'.
template <int STEPS>
__device__ __forceinline__ bool split_rows(const LineElements<STEPS> (&x)[2], RowPlanes<STEPS>& planes,
                                           RowScale (&row_scales)[2], float* of_others) {
  uint32_t largest[2];
  int exponent[2];
  uint32_t small[2] = {};
  bool some = false;
  SmallestHalves smallest;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    largest[h] = largest_magnitude(x[h]);
    exponent[h] = row_exponent<Fp16x3>(largest[h]);
    planes.split(h, x[h], power_of_two(-exponent[h]), smallest);
  }
  if (__any_sync(~0u, smallest.small_or_zero())) {  // zeros are frequent, small elements are not
    some = __any_sync(~0u, some_small(x[0], exponent[0]) || some_small(x[1], exponent[1]));
    if (some) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const LineGuard line = line_guard(x[h], power_of_two(-exponent[h]));
        small[h] = line.small;
        of_others[threadIdx.x % 32 / 4 * 2 + h] = sum_threshold<Fp16x3>(line.sum);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) row_scales[h] = pack_row_scale<Fp16x3>(largest[h], exponent[h], small[h]);
  return some;
}

// Computes a lane's scaled sums of 16 rows in 16 of the panel's columns, four of either row. `b` points to the lane's
// planes. Short sums include lo * lo, which is a good part of the error of few terms, and costs little where memory is
// the limit.
template <int STEPS>
__device__ __forceinline__ void multiply_rows(const RowPlanes<STEPS>& a, const uint4* b, float (&sums)[8]) {
  constexpr bool kShort = STEPS <= TallTile::kShortSteps;
  float fresh[2][4], sum[2][4], cross[2][2][4] = {}, of_lower[2][4] = {};  // [block of 8 columns]
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 of_col = b[s * 64 + j * 32];
      if (s % 2 == 0) fresh[j][0] = fresh[j][1] = fresh[j][2] = fresh[j][3] = 0;
      hopper::multiply_warp(fresh[j], a.hi[0][s], a.hi[1][s], of_col.x, of_col.y);
      hopper::multiply_warp(cross[j][0], a.hi[0][s], a.hi[1][s], of_col.z, of_col.w);
      hopper::multiply_warp(cross[j][1], a.lo[0][s], a.lo[1][s], of_col.x, of_col.y);
      if (kShort) hopper::multiply_warp(of_lower[j], a.lo[0][s], a.lo[1][s], of_col.z, of_col.w);
      if (s % 2 == 0 && s < STEPS - 1) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[j][i] = s < 2 ? fresh[j][i] : sum[j][i] + fresh[j][i];
    }
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float corrections = cross[j][0][i] + cross[j][1][i];
      if (kShort) corrections = fmaf(of_lower[j][i], Fp16x3::kCorrection, corrections);
      sums[i / 2 * 4 + j * 2 + i % 2] = fmaf(corrections, Fp16x3::kCorrection, sum[j][i]);
    }
}

// `plain`: columns need no test. `plain_scales`: at least their scales are plain.
struct PlainColumns {
  bool plain, plain_scales;
};

// The block's panel of B, in shared memory.
template <int STEPS>
struct TallPanel {
  uint4* planes;         // for each 16 columns and 16 of k, two blocks of 8 columns; a lane's in a block are contiguous
  RowScale* row_scales;  // scales and thresholds, in the order of lanes' columns
  float* of_others;      // thresholds for small elements of A, by columns' sums, in the same order

  __device__ __forceinline__ TallPanel(char* memory, int cols)
      : planes(reinterpret_cast<uint4*>(memory)),
        row_scales(reinterpret_cast<RowScale*>(memory + cols * STEPS * TallTile::kStep * 4)),
        of_others(reinterpret_cast<float*>(row_scales + cols)) {}

  // `at` counts blocks of 8 columns.
  __device__ __forceinline__ uint4* block(int at, int s) const {
    return planes + ((at / 2 * STEPS + s) * 2 + at % 2) * 32 + threadIdx.x % 32;
  }

  // Lowers the thresholds of a lane's rows to the largest one that the panel's columns require.
  __device__ __forceinline__ void lower_thresholds(uint32_t (&of_rows)[2], int cols) const {
    float most = 0;
    for (int col = threadIdx.x % 32; col < cols; col += 32) most = larger_or_nan(most, of_others[col]);
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (threshold_of(of_rows[h]) > most) of_rows[h] = with_threshold(of_rows[h], most);
  }

  // Fills the panel with columns from n0 on. Returns what is true of all columns, once the whole panel is filled.
  template <TallReads READS>
  __device__ __forceinline__ PlainColumns fill(const TallJob& job, const ConstMatrix& b, int64_t n0) const {
    const int lane = threadIdx.x % 32, c = lane / 4, first_k = place_of(READS, lane % 4, 0);
    PlainColumns all = {true, true};
#pragma unroll 1
    for (int at = threadIdx.x / 32; at < job.cols / 8; at += blockDim.x / 32) {
      const int of_lane = c / 2, e = at % 2 * 2 + c % 2;  // the column's lane among four, and its index there
      const int64_t col = n0 + at / 2 * 16 + place_of(job.stores, of_lane, e);
      const float* const from = b.data + col * b.col + first_k * b.row;
      const int k_left = col < b.cols ? static_cast<int>(b.rows) - first_k : 0;
      LineElements<STEPS> x;  // all are read before the first is used
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int q = s * TallTile::kStep + place_of(READS, 0, i);
          x[s][i] = q < k_left ? from[q * b.row] : 0.0f;
        }
      const uint32_t largest = largest_magnitude(x);
      const int exponent = row_exponent<Fp16x3>(largest);
      const float factor = power_of_two(-exponent);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const QuadPlanes<Fp16x3> split(scaled(x[s], factor));
        *block(at, s) = make_uint4(split.xy[0], split.zw[0], split.xy[1], split.zw[1]);
      }
      const LineGuard guard = line_guard(x, factor);
      const RowScale row_scale = pack_row_scale<Fp16x3>(largest, exponent, guard.small);
      if (lane % 4 == 0) {
        const int place = at / 2 * 16 + of_lane * 4 + e;
        row_scales[place] = row_scale;
        of_others[place] = sum_threshold<Fp16x3>(guard.sum);
      }
      all.plain = all.plain && is_plain(row_scale);
      all.plain_scales = all.plain_scales && has_plain_scale(row_scale);
    }
    // Plain columns have plain scales, so ordinary panels need one barrier.
    const bool plain = __syncthreads_and(all.plain);
    return {plain, plain || __syncthreads_and(all.plain_scales)};
  }
};

}  // namespace sgemm::split
