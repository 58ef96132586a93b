// Scales of rows that are found while the product runs.
//
// Idea:   a row's first stage of k sets its scale, with some headroom. An element that later leaves the format's
//         range makes its row's scale coarser: the sums so far are multiplied by a power of two, which loses nothing.
//         Elements too small for full accuracy are counted as ever; what was small under an earlier scale is smaller
//         still under a coarser one, so the guard's bound holds in the last scale.
#pragma once
#include "product.cuh"

namespace sgemm::split {

constexpr int kHeadroom = 4;    // binades; a softmax's rows seldom need more
constexpr int kNoScale = -126;  // of a row that has had zeros only; the largest factor
// Bits of the least scaled magnitude that a row's scale doesn't do for: anything but zero where there is none yet, and
// nothing where the row has been given up.
constexpr uint32_t kAnyNonzero = 1, kNothing = ~0u;
constexpr uint32_t kHoldsInf = 1u << 30, kHoldsNan = 1u << 31;  // flags in a row's count of small elements

// Binades by which a scale may become coarser in a block, and again for a cluster's other blocks. Sums are multiples of
// 2^-59, the product of the planes' last bits: four times 20 binades leave them exact. Beyond, earlier sums are off by
// a few 2^-149, or by 2^-83 at a change of more than 126 binades, which is nothing to a product that passes the test
// for a small element: so the row counts one more.
constexpr int kMostCoarser = 20;

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
struct OnlineShared : ProductShared {
  OnlineRows rows[2];
  alignas(16) float largest[2][2][4];          // scaled magnitude: (tile's parity, operand, warp of converters)
  alignas(8) uint8_t changed[STAGES][2][4];    // with this stage, scales of rows of an operand's warp of converters
  alignas(16) float change[STAGES][2][kTile];  // factors of the sums of earlier stages; 1 where nothing changed
  uint64_t words_of_cluster;                   // a barrier: the other blocks' words are there
  alignas(16) uint32_t of_cluster[4][2][kTile];
  alignas(16) uint32_t agreed[2][kTile];         // what they agree on
  alignas(16) float change_to_agreed[2][kTile];  // other warps may still follow the last stages' changes

  template <class R>
  __device__ __forceinline__ void init(int writers, int word_writers, uint32_t blocks) {
    ProductShared::init<R>(writers, word_writers, blocks);
    if (blocks == 1) return;
    const bool first = threadIdx.x % 32 == 0;
    if (first) hopper::init_barrier(&words_of_cluster, 1);
    __syncwarp();
    if (first) hopper::arrive_expecting(&words_of_cluster, (blocks - 1) * sizeof of_cluster[0]);
    hopper::fence_barrier_init();
  }
};

constexpr float kHalfRounding = 1.001f;  // more than a magnitude may be above its float16

template <class R>
struct OnlineScales {
  using Shape = typename R::Shape;
  using Sums = float[Shape::kSums];
  using Shared = OnlineShared<R::kStages>;
  static constexpr bool kKnown = false;

  // Before the sums of the ring's stage are added.
  __device__ __forceinline__ static void follow(const Shared& shared, int stage, int t, Sums& sum) {
    const uint2 changed = *reinterpret_cast<const uint2*>(shared.changed[stage]);
    if (changed.x | changed.y) multiply(shared.change[stage], changed.x, changed.y, t, sum);
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

  // The blocks of a cluster have scales of their own: to the coarsest of them.
  __device__ __forceinline__ static void agree(Shared& shared, int stage, int t, uint32_t rank, uint32_t blocks,
                                               Sums& sum) {
    const int operand = t / kTile, row = t % kTile;
    const uint32_t own = shared.words[stage][operand][row];
    shared.of_cluster[rank][operand][row] = own;
    if (t < blocks && t != rank)
      hopper::copy_in_cluster(hopper::map_to_rank(hopper::shared_address(shared.of_cluster[rank]), t),
                              shared.words[stage], sizeof shared.words[stage],
                              hopper::map_to_rank(hopper::shared_address(&shared.words_of_cluster), t));
    hopper::wait(&shared.words_of_cluster, 0);
    int exponent = kNoScale;
    for (uint32_t rank = 0; rank < blocks; ++rank)
      exponent = max(exponent, word_exponent(shared.of_cluster[rank][operand][row]));
    float threshold = -INFINITY;  // of zeros alone
    uint32_t coarsest = 0;        // of the words of blocks that had small elements
    bool inf = false, nan = false;
    for (uint32_t rank = 0; rank < blocks; ++rank) {
      const uint32_t word = shared.of_cluster[rank][operand][row];
      const float part = word_threshold(word);
      if (part == -INFINITY) continue;
      nan = nan || is_nan_row(word);
      threshold = fmaxf(threshold, 0) + part;
      inf = inf || is_inf_row(word);
      if (part > 0 && (word & 0xff) >= (coarsest & 0xff)) coarsest = word;
      if (exponent - word_exponent(word) > kMostCoarser) threshold += Fp16x3::kThreshold;
    }
    const uint32_t bits = nan ? kNanRow : inf ? kInfRow : __float_as_uint(threshold) & ~0xffu;
    shared.agreed[operand][row] = with_step(bits | static_cast<uint32_t>(exponent + 128), word_step(coarsest));
    float(&change)[2][kTile] = shared.change_to_agreed;
    change[operand][row] = power_of_two(max(word_exponent(own) - exponent, -126));
    sync_consumers();
    multiply(change, true, true, t, sum);
  }

  __device__ __forceinline__ static auto words(const Shared& shared, int stage, uint32_t blocks) -> const
      uint32_t (&)[2][kTile] {
    return blocks > 1 ? shared.agreed : shared.words[stage];
  }

 private:
  __device__ __forceinline__ static void multiply(const float (&change)[2][kTile], bool of_a, bool of_b, int t,
                                                  Sums& sum) {
    const float upper = of_a ? change[0][Shape::row(t, 0)] : 1, lower = of_a ? change[0][Shape::row(t, 2)] : 1;
#pragma unroll
    for (int e = 0; e < Shape::kSums; e += 4) {
      const float left = of_b ? change[1][Shape::col(t, e)] : 1, right = of_b ? change[1][Shape::col(t, e + 1)] : 1;
      sum[e] *= upper * left;
      sum[e + 1] *= upper * right;
      sum[e + 2] *= lower * left;
      sum[e + 3] *= lower * right;
    }
  }
};

}  // namespace sgemm::split
