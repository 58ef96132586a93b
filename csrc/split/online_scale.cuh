// Scales of rows that are found while the product runs.
//
// Idea:   a row's first stage of k sets its scale, with some headroom. An element that later leaves the format's
//         range makes its row's scale coarser: the sums so far are multiplied by a power of two, which loses nothing.
//         Elements too small for full accuracy are counted as ever; what was small under an earlier scale is smaller
//         still under a coarser one, so the guard's bound holds in the last scale.
#pragma once
#include "cluster_words.cuh"
#include "product.cuh"

namespace sgemm::split {

constexpr int kHeadroom = 4;  // binades; a softmax's rows seldom need more
// Bits of the least scaled magnitude that a row's scale doesn't do for: anything but zero where there is none yet, and
// nothing where the row has been given up.
constexpr uint32_t kAnyNonzero = 1, kNothing = ~0u;

// Up to 128 rows of an operand.
struct OnlineRows {
  alignas(16) float factor[kTile];    // 2^-exponent; 0 if the row holds Inf or NaN
  alignas(16) uint32_t limit[kTile];  // see kAnyNonzero
  int16_t exponent[kTile], first_exponent[kTile];
  uint32_t largest[kTile];  // bits of the largest magnitude in a stage
  uint32_t small[kTile];    // how many elements were too small, and bits as above
  uint16_t step[kTile];     // of k, whose largest element set the scale
};

template <class F>
__device__ __forceinline__ uint32_t word_of_row(const OnlineRows& rows, int r) {
  const uint32_t small = rows.small[r];
  const int exponent = rows.exponent[r];
  if (small & kHoldsNan) return kNanRow | static_cast<uint32_t>(exponent + 128);
  if (small & kHoldsInf) return row_word<F>(kInfinity, exponent, small);
  return with_step(row_word<F>(exponent == kNoScale ? 0 : 1, exponent, small), rows.step[r]);
}

// The scale of row `r` for a step of k whose largest magnitude is known. Returns what sums of earlier steps are
// multiplied by.
template <class F>
__device__ __forceinline__ float rescale_row(OnlineRows& rows, int r, int step) {
  const uint32_t largest = rows.largest[r];
  if (largest >= kInfinity) {  // no sum of it is used, whatever comes
    rows.small[r] |= largest > kInfinity ? kHoldsNan : kHoldsInf;
    rows.exponent[r] = 0;
    rows.factor[r] = 0;
    rows.limit[r] = kNothing;
    return 1;
  }
  if (__float_as_uint(__uint_as_float(largest) * rows.factor[r]) < rows.limit[r]) return 1;
  const int exponent = rows.exponent[r], wanted = row_exponent<F>(largest) + kHeadroom;
  rows.exponent[r] = wanted;
  rows.factor[r] = power_of_two(-wanted);
  rows.limit[r] = __float_as_uint(F::kLimit);
  rows.step[r] = step;
  if (exponent == kNoScale) {
    rows.first_exponent[r] = wanted;
    return 1;
  }
  if (wanted - rows.first_exponent[r] > kMostCoarser) ++rows.small[r];
  return power_of_two(max(exponent - wanted, -126));
}

template <int STAGES>
struct OnlineShared : FoundScales {
  OnlineRows rows[2];
  alignas(16) float largest[2][2][4];          // scaled magnitude: (tile's parity, operand, warp of converters)
  alignas(8) uint8_t changed[STAGES][2][4];    // with this stage, scales of rows of an operand's warp of converters
  alignas(16) float change[STAGES][2][kTile];  // factors of the sums of earlier stages; 1 where nothing changed
};

constexpr float kHalfRounding = 1.001f;  // more than a magnitude may be above its float16

template <class R>
struct OnlineScales {
  using Shape = typename R::Shape;
  using Sums = float[Shape::kSums];
  using Shared = OnlineShared<R::kStages>;
  static constexpr bool kKnown = false, kDown = false, kPlainFirst = true;

  // Before the sums of the ring's stage are added.
  __device__ __forceinline__ static void follow(const Shared& shared, int stage, int t, Sums& sum) {
    const uint2 changed = *reinterpret_cast<const uint2*>(shared.changed[stage]);
    if (changed.x | changed.y) multiply_sums<Shape>(shared.change[stage], changed.x, changed.y, t, sum);
  }

  // Thresholds assume that small elements meet ones up to F::kLimit. The other operand's largest, with the headroom of
  // its scales, is most often far from that.
  __device__ __forceinline__ static void tighten(Shared& shared, int stage, int t) {
    const int operand = t / kTile;
    uint32_t& word = shared.words[stage][operand][t % kTile];
    const float4 largest = *reinterpret_cast<const float4*>(shared.largest[stage][1 - operand]);
    const float most = fmaxf(fmaxf(largest.x, largest.y), fmaxf(largest.z, largest.w)) * kHalfRounding;
    word = with_smaller_threshold(word, most / Fp16x3::kLimit);
    hopper::fence_async_proxy();  // a cluster's blocks copy it
    sync_consumers();
  }

  __device__ __forceinline__ static void agree(Shared& shared, int stage, int t, uint32_t rank, uint32_t blocks,
                                               Sums& sum) {
    const auto& change = shared.cluster_words.agree(shared.words[stage], t, rank, blocks, false);
    multiply_sums<Shape>(change, true, true, t, sum);
  }

  __device__ __forceinline__ static bool fix_up(const Job&, Shared&, int, const WorkTile&, Sums&, int) { return true; }

  __device__ __forceinline__ static auto words(const Shared& shared, int stage, uint32_t blocks) -> const
      uint32_t (&)[2][kTile] {
    return shared.words_of(stage, blocks);
  }
};

}  // namespace sgemm::split
