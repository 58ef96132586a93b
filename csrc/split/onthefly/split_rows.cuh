// Rows of the on-the-fly operand, scaled and split in registers, each 64 of k separately.
//
// Idea:   a thread holds the same two rows of a wgmma's A and of its sums, so a row needs no single scale. Each 64 of k
//         are scaled by their largest element, and the sum of their products is multiplied by a power of two when it is
//         added. Elements are small only relative to the others among their 64.
// Range:  sums are relative to one exponent, the reference. A step's scale is at most kSpread binades finer, so that
//         its products remain whole multiples of the sums' unit. A scale more than kSpread binades coarser becomes the
//         reference.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../format/planes.cuh"
#include "../guard/guard.cuh"

namespace sgemm::split {

constexpr int kSpread = 20;
constexpr int kMostReference = 93;  // the largest reference, so that Inf is always too coarse

constexpr int kChunks = kOnTheFlySteps * kStep / 16;

// A thread's elements of the steps that share a scale: [one of two rows, 8 apart][16 of k]. A quad's elements are in
// the order of a fragment's pairs.
using RawFragments = float4[2][kChunks];

// A thread's elements of a step, as wgmma's A: [16 of k][register].
struct Fragments {
  uint32_t hi[2][4], lo[2][4];

  // Keeps the compiler from changing the registers before a wait_products() that completes the products that read them.
  __device__ __forceinline__ void fence() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      hopper::fence_registers(hi[i]);
      hopper::fence_registers(lo[i]);
    }
  }
};

// Multiplies the sums of the r-th of a thread's two rows.
template <int N>
__device__ __forceinline__ void scale_row(int r, float factor, float (&sum)[N]) {
#pragma unroll
  for (int e = 0; e < N; e += 4) {
    sum[e + 2 * r] *= factor;
    sum[e + 2 * r + 1] *= factor;
  }
}

struct RowScales {
  int exponent[2];
};

// A thread's two rows in a tile. The four lanes of a row have equal members, except `small_` and `sum_`.
class OnTheFlyRows {
 public:
  // Chooses scales for the elements from this step of k on. If a row's reference changes, its sums are multiplied to
  // match.
  template <int N>
  __device__ __forceinline__ RowScales choose_scales(const RawFragments& v, int step, float (&sum)[N]) {
    float most[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < kChunks; i += 2) {
        const float of_pair = fmaxf(largest(v[r][i]), largest(v[r][i + 1]));
        sum_[r] = __fadd_ru(sum_[r], of_pair);
        most[r] = fmaxf(most[r], of_pair);
      }
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
      const float other[2] = {__shfl_xor_sync(~0u, most[0], lanes), __shfl_xor_sync(~0u, most[1], lanes)};
#pragma unroll
      for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], other[r]);
    }
    int wanted[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // row_exponent() without its test for NaN: fmaxf() ignores NaN, so `most` is never NaN.
      wanted[r] = max(static_cast<int>(__float_as_uint(most[r]) >> 23) - 127 - Fp16x3::kTopExponent, kNoScale);
    }
    if (wanted[0] > reference_[0] + kSpread || wanted[1] > reference_[1] + kSpread) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (wanted[r] <= reference_[r] + kSpread) continue;
        if (__float_as_uint(most[r]) == kInfinity) small_[r] += INFINITY;
        wanted[r] = min(wanted[r], kMostReference + kSpread);
        const int reference = min(wanted[r], kMostReference);
        if (is_nonzero(r)) {
          const float change = power_of_two(max(reference_[r] - reference, -126));
          small_[r] = __fmaf_ru(small_[r], change, 1);  // counts one more for what the sums may lose
          scale_row(r, change, sum);
        }
        reference_[r] = reference;
      }
    }
    RowScales scales;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scales.exponent[r] = max(wanted[r], reference_[r] - kSpread);
      if (most[r] != 0) coarsest_[r] = max(coarsest_[r], scale_at(wanted[r], step));
    }
    return scales;
  }

  // Splits a step, the first (0) or the second one (1).
  __device__ __forceinline__ void split(const RawFragments& v, int step, const RowScales& scales, Fragments& to) {
    const float factor[2] = {power_of_two(-scales.exponent[0]), power_of_two(-scales.exponent[1])};
    __half2 smallest = __float2half2_rn(Fp16x3::kLimit);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4& x = v[r][2 * step + i];
        const float by = factor[r];
        const QuadPlanes<Fp16x3> planes(make_float4(x.x * by, x.y * by, x.z * by, x.w * by));
        to.hi[i][r] = planes.xy[0];
        to.lo[i][r] = planes.xy[1];
        to.hi[i][2 + r] = planes.zw[0];
        to.lo[i][2 + r] = planes.zw[1];
        smallest = __hmin2_nan(smallest, __habs2(*reinterpret_cast<const __half2*>(&planes.xy[0])));
        smallest = __hmin2_nan(smallest, __habs2(*reinterpret_cast<const __half2*>(&planes.zw[0])));
      }
    if (!__hbge2(smallest, __float2half2_rn(Fp16x3::kSmall))) {  // also true for NaN
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4 &x = v[r][2 * step], &y = v[r][2 * step + 1];
        const SmallElements small(scales.exponent[r]);
        const uint32_t count = small.count(x) + small.count(y);
        small_[r] = __fmaf_ru(static_cast<float>(count), this->factor(scales, r), small_[r]);
        if (holds_nan(smallest) && (holds_nan(x) || holds_nan(y))) small_[r] = NAN;
      }
    }
  }

  // Returns the factor of products with these scales in the sums of row r.
  __device__ __forceinline__ float factor(const RowScales& scales, int r) const {
    return power_of_two(max(scales.exponent[r] - reference_[r], -126));
  }

  // Brings sums to the rows' packed scales. `last`: sums in the scales of the last step.
  template <int N>
  __device__ __forceinline__ void finish(const RowScales& scales, float (&sum)[N], float (&last)[N]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float to_coarsest = power_of_two(max(reference_[r] - coarsest(r), -126));
      scale_row(r, to_coarsest, sum);
      scale_row(r, power_of_two(max(scales.exponent[r] - coarsest(r), -126)), last);
      small_[r] = __fmul_ru(small_[r], to_coarsest);
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
        small_[r] = __fadd_ru(small_[r], __shfl_xor_sync(~0u, small_[r], lanes));
        sum_[r] = __fadd_ru(sum_[r], __shfl_xor_sync(~0u, sum_[r], lanes));
      }
    }
  }

  __device__ __forceinline__ RowScale row_scale(int r) const {
    return pack_found_scale(is_nonzero(r), coarsest(r), small_[r]);
  }

  // Returns the packed statistics of row r. `place`: position of its largest element, or kNoPlace.
  __device__ __forceinline__ RowStats row_stats(int r, uint32_t place) const {
    return pack_row_stats<Fp16x3>(__fmul_ru(sum_[r] * kSummedTogether, power_of_two(-coarsest(r))), place);
  }

  // Returns the position of row r's largest element among the 64 of k that set the coarsest scale. The row's four lanes
  // search for it. `element(k)` reads the row.
  template <class Element>
  __device__ __forceinline__ uint32_t place_of_largest(int r, const Element& element) const {
    uint32_t place = kNoPlace;
    float most = 0;
    const auto take = [&](float x, uint32_t k) {
      if (x > most || (x == most && k < place)) place = k;
      most = fmaxf(most, x);
    };
    const int first = (kLastStep - (coarsest_[r] & kLastStep)) * kStep + static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kOnTheFlySteps * kStep; i += 4) take(fabsf(element(first + i)), first + i);
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2)
      take(__shfl_xor_sync(~0u, most, lanes), __shfl_xor_sync(~0u, place, lanes));
    return place;
  }

 private:
  __device__ __forceinline__ static float largest(const float4& v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  }

  __device__ __forceinline__ static bool holds_nan(__half2 v) { return __hisnan(v.x) || __hisnan(v.y); }
  __device__ __forceinline__ static bool holds_nan(const float4& v) {
    return isnan(v.x) || isnan(v.y) || isnan(v.z) || isnan(v.w);
  }

  static constexpr int kSummedTogether = 8;
  // `coarsest_` is the largest scale_at(): the coarsest scale, and among equal scales the first step.
  static constexpr int kStepBits = 8, kLastStep = (1 << kStepBits) - 1;
  static_assert(kLastStep == kMaxSlice / kStep - 1);
  __device__ __forceinline__ static constexpr int scale_at(int exponent, int step) {
    return exponent * (1 << kStepBits) + kLastStep - step;
  }
  static constexpr int kOfZeros = kNoScale * (1 << kStepBits) - 1;  // below scale_at() of any element
  __device__ __forceinline__ bool is_nonzero(int r) const { return coarsest_[r] != kOfZeros; }
  __device__ __forceinline__ int coarsest(int r) const { return max(coarsest_[r] >> kStepBits, kNoScale); }

  int reference_[2] = {kNoScale - kSpread, kNoScale - kSpread};
  int coarsest_[2] = {kOfZeros, kOfZeros};
  float small_[2] =
      {};  // weighted counts for pack_found_scale(), in this lane's part of the rows, relative to the reference
  float sum_[2] = {};  // sums of the largest of each kSummedTogether elements, in this lane's part
};

}  // namespace sgemm::split
