// The guard certifies elements of C: the first comparison, and the quantities of the second look (second_look.cuh).
//
// The first comparison is |C_ij| against the threshold of row i plus that of column j. These thresholds assume that
// each small element meets the largest element of the other operand. Both sides have tighter bounds. A column's sum of
// magnitudes limits what all of a row's small elements lose, and vice versa. And the promised accuracy is relative to
// (|A||B|)_ij. The product at the position of the row's, or of the column's, largest element is a lower bound of that,
// even if C_ij is small by cancellation.
//
// Row statistics hold both for rows with small elements only, so that ordinary data pays nothing. Rows that the product
// kernel splits have an upper bound of the sum, and the position of an element that is nearly the largest. If it splits
// them in registers, all rows have the sum.
#pragma once
#include "../../problem/elements.h"
#include "../format/row_scale.cuh"

namespace sgemm::split {

// Row statistics (`row_stats`), packed. The upper 16 bits hold a threshold for the other operand's small elements,
// rounded up. The lower 16 bits hold the position along k of the row's largest element, or kNoPlace.
constexpr uint32_t kNoPlace = 0xffff;

// A row's scaled magnitudes are added up as integers, in units of F::kLimit / kUnits, each magnitude rounded up. The
// sum is the same in any order, so that it doesn't depend on other rows or on the number of threads. kMaxSlice
// magnitudes are at most 2^31 units.
constexpr uint32_t kUnits = 1 << 18;  // units of the largest possible magnitude
template <class F>
__device__ __forceinline__ uint32_t magnitude_units(float scaled) {
  // Adding 2^23 leaves the integer in the mantissa. A conversion would take four times as long as an addition.
  return __float_as_uint(__fadd_ru(fabsf(scaled) * (kUnits / F::kLimit), 0x1p23f)) - __float_as_uint(0x1p23f);
}

template <class F>
__device__ __forceinline__ float sum_of_units(uint32_t units) {
  return static_cast<float>(units) * (F::kLimit / kUnits);
}

// Packs row statistics. `sum`: of the scaled row's magnitudes, or an upper bound of it.
template <class F>
__device__ __forceinline__ RowStats pack_row_stats(float sum, uint32_t place) {
  return uint32_t{sum_bits(sum_threshold<F>(sum))} << 16 | place;
}
__device__ __forceinline__ float stats_threshold(RowStats row_stats) {
  return __uint_as_float(row_stats & 0xffff0000u);
}
__device__ __forceinline__ uint32_t stats_place(RowStats row_stats) { return row_stats & 0xffffu; }

// A row of A or a column of B, as the guard sees it.
struct GuardedRow {
  float threshold;  // from the number of the row's small elements
  float of_others;  // threshold for the other operand's small elements, from the row's sum; Inf if the sum is unknown
  uint32_t place;   // position of the row's largest element, or kNoPlace

  // `always`: the row has statistics even without small elements.
  __device__ __forceinline__ GuardedRow(RowScale row_scale, const RowStats* row_stats, bool always)
      : threshold(threshold_of(row_scale)), of_others(INFINITY), place(kNoPlace) {
    if (!(threshold > 0) && !always) return;
    of_others = stats_threshold(*row_stats);
    place = stats_place(*row_stats);
  }
};

// Returns the smallest magnitude of a sum that is certified.
__device__ __forceinline__ float least_certified(const GuardedRow& a, const GuardedRow& b) {
  return (a.threshold > 0 ? fminf(a.threshold, b.of_others) : 0) +
         (b.threshold > 0 ? fminf(b.threshold, a.of_others) : 0);
}

// Other sums of the mainloop are lower bounds of |A||B| as well. They and C are rarely small by cancellation together.
//
// Fp16x3: the corrections are hi lo' + lo' hi with lo' = 2^11 lo. Each |lo'| is at most the element's magnitude. If the
// element is small, |lo'| may be up to 2^-14, and it meets elements of up to 2^15. So |corrections| is at most
// 2 |A||B| + 2 (na + nb), to within 2^-10 of that. Here 2 (na + nb) is half of the threshold. Bf16x6: the corrections
// are smaller.
//
// The sum of hi * hi over a part of k is at most |A||B|, to within 2^-10 of that. If a cluster shares a tile's k, a
// block's whole sum of its part is at most |A||B| as well, and is compared with the threshold like C. A product that
// splits operands itself has the sum of its last 64 or 32 of k.
constexpr float kOfMagnitudes = 1.0f / 3;

// The certified elements among a thread's N accumulators, a bit each. A warp has 16 rows.
template <int N>
struct Certified {
  static constexpr int kCount = (N + 31) / 32;
  uint32_t bits[kCount] = {};

  __device__ __forceinline__ Certified operator|(const Certified& other) const {
    Certified both;
#pragma unroll
    for (int i = 0; i < kCount; ++i) both.bits[i] = bits[i] | other.bits[i];
    return both;
  }

  // Adds all elements outside of C, for any value: 0 times Inf makes them NaN too.
  template <class Inside>
  __device__ __forceinline__ void add_outside(int rows_left, const Inside& inside, int lane) {
    const int r = lane / 4, j = lane % 4 * 2;
    const uint32_t rows = (r < rows_left ? 0 : 0x33333333u) | (r + 8 < rows_left ? 0 : 0xccccccccu);
#pragma unroll
    for (int e = 0; e < N; e += 4) {
      const uint32_t cols = (inside(e * 2 + j) ? 0 : 5u) | (inside(e * 2 + j + 1) ? 0 : 10u);
      bits[e / 32] |= (cols | rows & 15) << e % 32;
    }
  }

  // Returns the uncertified elements of `bands` among the thread's accumulators 32 i to 32 i + 31, a bit each.
  __device__ __forceinline__ uint32_t uncertified(int i, uint32_t bands) const {
    return ~bits[i] & ((bands >> 2 * i & 1) * 0xffffu | (bands >> 2 * i & 2) * 0x7fff8000u);
  }

  // Returns the bands of 32 columns in which some element of the warp is uncertified, a bit each.
  __device__ __forceinline__ uint32_t uncertified_bands() const {
    uint32_t uncertified = 0;
#pragma unroll
    for (int band = 0; band < N / 16; ++band)
      uncertified |= static_cast<uint32_t>((bits[band / 2] >> band % 2 * 16 & 0xffff) != 0xffff) << band;
    return __reduce_or_sync(~0u, uncertified);
  }
};

// The first comparison: certifies each element e with factor |x[e]| >= threshold, and elements outside of C unless they
// are NaN. `rows`, `cols`: the scales and thresholds of the warp's rows and columns.
template <int N, class Inside>
__device__ __forceinline__ Certified<N> certified_elements(const float (&x)[N], float factor, const uint32_t* rows,
                                                           const uint32_t* cols, int rows_left, const Inside& inside,
                                                           int lane) {
  const int r = lane / 4, j = lane % 4 * 2;
  const auto of_row = [&](int r) { return r < rows_left ? threshold_of(rows[r]) : -INFINITY; };
  const auto of_col = [&](int col, RowScale row_scale) { return inside(col) ? threshold_of(row_scale) : -INFINITY; };
  const float upper = of_row(r), lower = of_row(r + 8);
  Certified<N> certified;
#pragma unroll
  for (int e = 0; e < N; e += 4) {
    const int col = e * 2 + j;
    const uint2 row_scales = *reinterpret_cast<const uint2*>(&cols[col]);
    const float left = of_col(col, row_scales.x), right = of_col(col + 1, row_scales.y);
    const auto compare = [&](int e, float threshold) {
      if (factor * fabsf(x[e]) >= threshold) certified.bits[e / 32] |= 1u << e % 32;
    };
    compare(e, upper + left);
    compare(e + 1, upper + right);
    compare(e + 2, lower + left);
    compare(e + 3, lower + right);
  }
  return certified;
}

constexpr float kProductRounding = 0.999f;  // keeps a rounded product, or the sum of two, below the exact one

// Returns a lower bound of (|A||B|)_ij, scaled: the products at the positions place_a and place_b along k.
__device__ __forceinline__ float least_magnitude(const ElementMatrix& a, const ElementMatrix& b, int64_t i, int64_t j,
                                                 uint32_t place_a, uint32_t place_b, uint32_t left, uint32_t right) {
  const float scale_a = power_of_two(-exponent_of(left)), scale_b = power_of_two(-exponent_of(right));
  const auto product = [&](uint32_t q) {
    return q == kNoPlace ? 0.0f : fabsf((a.at(i, q)[0] * scale_a) * (b.at(q, j)[0] * scale_b));
  };
  const float first = product(place_a), second = product(place_b);
  return kProductRounding * (place_a == place_b ? first : first + second);
}

}  // namespace sgemm::split
