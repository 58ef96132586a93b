// The guard: its test of sums, and its second look at elements whose sum alone doesn't pass that.
//
// The test compares |C_ij| with the threshold of row i plus that of column j, which assume that each small element
// meets the largest one of the other operand. Both sides can be had tighter. What a row's small elements lose in all is
// no more than a column's sum of magnitudes lets it be; and the accuracy that is promised is relative to (|A||B|)_ij,
// which is at least the product at the place of the row's, or the column's, largest element, also where C_ij is small
// by cancellation. Both are recorded for rows with small elements alone, so that ordinary data pays nothing. Where the
// scales are found while the product runs, only the step of k is known that set a row's scale, of which an element is
// nearly the largest; and the sum of its magnitudes is known by the largest of each few.
#pragma once
#include "../format/format.cuh"
#include "../plan/job.h"

namespace sgemm::split {

// A row's record: the upper 16 bits of a threshold, rounded up, and below them the place along k of its largest
// element.
constexpr uint32_t kNoPlace = 0xffff;

// A row's scaled magnitudes are added up in whole units, each rounded up: the sum is the same in whatever order, so it
// depends on no other row and no number of threads. kMaxSlice of them are at most 2^31.
constexpr uint32_t kUnits = 1 << 18;  // of the largest magnitude there may be
template <class F>
__device__ __forceinline__ uint32_t magnitude_units(float scaled) {
  // In 2^23's mantissa, for a conversion takes four times as long as a sum.
  return __float_as_uint(__fadd_ru(fabsf(scaled) * (kUnits / F::kLimit), 0x1p23f)) - __float_as_uint(0x1p23f);
}

// `units` of the scaled row's magnitudes, or more than that.
template <class F>
__device__ __forceinline__ uint32_t guard_record(uint32_t units, uint32_t place) {
  const float sum = static_cast<float>(units) * (F::kLimit / kUnits);
  return uint32_t{sum_bits(sum_threshold<F>(sum))} << 16 | place;
}
__device__ __forceinline__ float record_threshold(uint32_t record) { return __uint_as_float(record & 0xffff0000u); }
__device__ __forceinline__ uint32_t record_place(uint32_t record) { return record & 0xffffu; }

// A row of A or a column of B, as the guard sees it.
struct GuardedRow {
  float threshold;  // by the count of its small elements
  float of_others;  // what its sum makes of the other operand's small elements; infinite if it is not known
  uint32_t place;   // of its largest element, or kNoPlace
  float floor = 0;  // of the threshold, whatever the other operand's sum: for what sums of parts may have lost

  // `record`: null where there is none.
  __device__ __forceinline__ GuardedRow(uint32_t word, const uint32_t* record)
      : threshold(word_threshold(word)), of_others(INFINITY), place(kNoPlace) {
    if (!(threshold > 0) || !record) return;
    of_others = record_threshold(*record);
    place = record_place(*record);
  }
  // A row whose scale has been found on the way, and whose magnitudes come to so much at most.
  __device__ __forceinline__ GuardedRow(uint32_t word, float sum) : GuardedRow(word, nullptr) {
    of_others = sum_threshold<Fp16x3>(sum);
    if (word_exponent(word) < kFinestSum) floor = lost_in_parts(word_exponent(word));
  }
};

// The least magnitude at which a product is accurate enough.
__device__ __forceinline__ float least_certain(const GuardedRow& a, const GuardedRow& b) {
  return (a.threshold > 0 ? fminf(a.threshold, fmaxf(b.of_others, a.floor)) : 0) +
         (b.threshold > 0 ? fminf(b.threshold, a.of_others) : 0);
}

// Sums that a main loop leaves beside C tell of |A||B| as well, and are small by cancellation where C is not.
//
// The corrections of Fp16x3, hi lo' + lo' hi with lo' = 2^11 lo: lo' is at most the element in magnitude, and of a
// small one 2^-14, times up to 2^15. So they are at most 2 |A||B|, but for a 2^-10 of it, and 2 (na + nb), which is
// half of the threshold. Those of Bf16x6 are smaller. And hi * hi of some of k, which is |A||B| at most, but for as
// little. So is a block's whole sum of a part of k, which is compared with the threshold as C is.
constexpr float kOfMagnitudes = 1.0f / 3;

// Which of a thread's N accumulators, of a warp's 16 rows, are certain, by bits.
template <int N>
struct Certain {
  uint32_t bits[N / 32] = {};

  __device__ __forceinline__ Certain operator|(const Certain& other) const {
    Certain both;
#pragma unroll
    for (int i = 0; i < N / 32; ++i) both.bits[i] = bits[i] | other.bits[i];
    return both;
  }

  // What lies outside, whatever it is: 0 times Inf is NaN there too.
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

  // Those of `bands` that are not, of the thread's accumulators from the 32 i-th on.
  __device__ __forceinline__ uint32_t uncertain(int i, uint32_t bands) const {
    return ~bits[i] & ((bands >> 2 * i & 1) * 0xffffu | (bands >> 2 * i & 2) * 0x7fff8000u);
  }

  // Bands of 32 columns, by bits, in which not all of the warp's are.
  __device__ __forceinline__ uint32_t uncertain_bands() const {
    uint32_t uncertain = 0;
#pragma unroll
    for (int band = 0; band < N / 16; ++band)
      uncertain |= static_cast<uint32_t>((bits[band / 2] >> band % 2 * 16 & 0xffff) != 0xffff) << band;
    return __reduce_or_sync(~0u, uncertain);
  }
};

// The comparison: those whose magnitude, factor |x[e]| of the thread's e-th, is not below the threshold, and those
// outside unless they are NaN. `rows` and `cols`: the words of the warp's.
template <int N, class Inside>
__device__ __forceinline__ Certain<N> certain_elements(const float (&x)[N], float factor, const uint32_t* rows,
                                                       const uint32_t* cols, int rows_left, const Inside& inside,
                                                       int lane) {
  const int r = lane / 4, j = lane % 4 * 2;
  const auto of_row = [&](int r) { return r < rows_left ? word_threshold(rows[r]) : -INFINITY; };
  const auto of_col = [&](int col, uint32_t word) { return inside(col) ? word_threshold(word) : -INFINITY; };
  const float upper = of_row(r), lower = of_row(r + 8);
  Certain<N> certain;
#pragma unroll
  for (int e = 0; e < N; e += 4) {
    const int col = e * 2 + j;
    const uint2 words = *reinterpret_cast<const uint2*>(&cols[col]);
    const float left = of_col(col, words.x), right = of_col(col + 1, words.y);
    const auto compare = [&](int e, float threshold) {
      if (factor * fabsf(x[e]) >= threshold) certain.bits[e / 32] |= 1u << e % 32;
    };
    compare(e, upper + left);
    compare(e + 1, upper + right);
    compare(e + 2, lower + left);
    compare(e + 3, lower + right);
  }
  return certain;
}

constexpr float kProductRounding = 0.999f;  // keeps a rounded product, or the sum of two, below the exact one

// A lower bound of (|A||B|)_ij, scaled.
__device__ __forceinline__ float least_magnitude(const ElementMatrix& a, const ElementMatrix& b, int64_t i, int64_t j,
                                                 uint32_t place_a, uint32_t place_b, uint32_t left, uint32_t right) {
  const float scale_a = power_of_two(-word_exponent(left)), scale_b = power_of_two(-word_exponent(right));
  const auto product = [&](uint32_t q) {
    return q == kNoPlace ? 0.0f : fabsf((a.at(i, q)[0] * scale_a) * (b.at(q, j)[0] * scale_b));
  };
  const float first = product(place_a), second = product(place_b);
  return kProductRounding * (place_a == place_b ? first : first + second);
}

// Of a line, a row of A or a column of B, the place of the largest element of the steps that set its scale. By a warp,
// of up to 32 lines from `first` on, those `asked` for by bits; lane i has line i's. Lanes read neighbours along k, a
// step of several lines at once.
static __device__ __noinline__ uint32_t find_largest(uint32_t asked, ElementPointer first, int64_t line_stride,
                                                     int64_t k_stride, int64_t depth, const uint32_t* words) {
  static_assert(kStep == 32 && kStreamedSteps == 2);
  constexpr int kLines = 4;
  const int lane = threadIdx.x % 32;
  uint32_t found = kNoPlace;
#pragma unroll 1
  while (asked) {
    int lines[kLines], places[kLines];
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      lines[i] = __ffs(asked) - 1;
      places[i] = static_cast<int>(word_step(words[max(lines[i], 0)])) * kStep + lane;
      asked &= asked - 1;
    }
    float x[2 * kLines];
    const auto place = [&](int i) { return places[i / 2] + i % 2 * kStep; };
    read_elements(
        x, first, [&](int i) { return lines[i / 2] * line_stride + place(i) * k_stride; },
        [&](int i) { return lines[i / 2] >= 0 && place(i) < depth; });
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const uint32_t upper = magnitude(x[2 * i]), lower = magnitude(x[2 * i + 1]), own = max(upper, lower);
      const int of = __ffs(__ballot_sync(~0u, own == __reduce_max_sync(~0u, own))) - 1;
      const int at = __shfl_sync(~0u, place(2 * i + (lower > upper)), of);
      if (lane == lines[i]) found = at;
    }
  }
  return found;
}

}  // namespace sgemm::split
