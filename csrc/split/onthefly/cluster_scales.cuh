// Common scales for the sums of one tile whose blocks found scales separately, each in its part of k.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../../gpu/warpgroups.cuh"
#include "../format/row_scale.cuh"

namespace sgemm::split {

// Binades by which a column's reference may become coarser in a block, or a row's scale because of the cluster's other
// block. Sums are multiples of 2^-59, the product of the planes' last bits, times 2^-kSpread for the row and for the
// column: 2^-99. So 15 binades for a row and 15 for a column leave sums exact. Beyond that, earlier sums are off by a
// few 2^-149, or by 2^-83 at a change of more than 126 binades. Such an error is negligible for a product that passes
// the test for a small element, so the row counts one more element. Where the same kernel splits B, clusters don't
// share a tile, so no third change is added.
constexpr int kMostCoarser = 15;

// Multiplies sums by their rows' factors, which are powers of two.
template <class Shape>
__device__ __forceinline__ void multiply_sums(const float (&change)[kTile], int t, float (&sum)[Shape::kSums]) {
  const float upper = change[Shape::row(t, 0)], lower = change[Shape::row(t, 2)];
#pragma unroll
  for (int e = 0; e < Shape::kSums; e += 4) {
    sum[e] *= upper;
    sum[e + 1] *= upper;
    sum[e + 2] *= lower;
    sum[e + 3] *= lower;
  }
}

// Calls `take` with values(i) of `count` parts. kPartsAtOnce of them are read before the first is taken: otherwise each
// read of device memory would wait for the previous one.
constexpr uint32_t kPartsAtOnce = 4;
template <class Values, class Take>
__device__ __forceinline__ void for_each_part(uint32_t count, const Values& values, const Take& take) {
  for (uint32_t first = 0; first < count; first += kPartsAtOnce) {
    decltype(values(0)) read[kPartsAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kPartsAtOnce; ++i) read[i] = values(min(first + i, count - 1));
#pragma unroll
    for (uint32_t i = 0; i < kPartsAtOnce; ++i)
      if (first + i < count) take(read[i]);
  }
}

// Returns a row's packed scale for the sums of `count` parts, in the coarsest of their scales. `row_scale(i)`
// is the packed scale of part i.
template <class ScaleOf>
__device__ __forceinline__ uint32_t scale_of_parts(uint32_t count, const ScaleOf& row_scale) {
  int exponent = kNoScale;
  for_each_part(count, row_scale, [&](uint32_t own) { exponent = max(exponent, exponent_of(own)); });
  float threshold = -INFINITY;  // for zeros alone
  uint32_t coarsest = 0;        // the coarsest packed scale among parts with small elements
  bool inf = false, nan = false;
  for_each_part(count, row_scale, [&](uint32_t own) {
    const float part = threshold_of(own);
    if (part == -INFINITY) return;
    nan = nan || is_nan_row(own);
    threshold = fmaxf(threshold, 0) + part * power_of_two(max(exponent_of(own) - exponent, -126));
    inf = inf || is_inf_row(own);
    if (part > 0 && (own & 0xff) >= (coarsest & 0xff)) coarsest = own;
    if (exponent - exponent_of(own) > kMostCoarser) threshold += Fp16x3::kThreshold;
  });
  const uint32_t bits = nan ? kNanRow : inf ? kInfRow : __float_as_uint(threshold) & ~0xffu;
  return with_step(bits | static_cast<uint32_t>(exponent + 128), step_of(coarsest));
}

// Returns the row's sum of magnitudes, in the scale of `row_scale`.
template <class ScaleOf, class Sum>
__device__ __forceinline__ uint16_t sum_of_parts(uint32_t count, RowScale row_scale, const ScaleOf& scale_of,
                                                 const Sum& sum_of) {
  float sum = 0;
  const auto scaled = [&](uint32_t i) { return make_uint2(scale_of(i), sum_of(i)); };
  for_each_part(count, scaled, [&](const uint2& part) {
    const float to_common = power_of_two(max(exponent_of(part.x) - exponent_of(row_scale), -126));
    sum = __fadd_ru(sum, __fmul_ru(sum_of_bits(static_cast<uint16_t>(part.y)), to_common));
  });
  return sum_bits(sum);
}

struct ClusterScales {
  uint64_t arrived;  // barrier: the other block's row scales have arrived
  alignas(16) TileScales others, agreed;
  alignas(16) float change[kTile];  // factors of the rows' sums

  // Called by one warp.
  __device__ __forceinline__ void init(uint32_t blocks) {
    if (blocks == 1 || threadIdx.x % 32 != 0) return;
    hopper::init_barrier(&arrived, 1);
    hopper::arrive_expecting(&arrived, sizeof others);
    hopper::fence_barrier_init();
  }

  // Called by all consumers, each for the scale of one row or column. Rows get the coarser scale of the two blocks. B's
  // scales are the same in both blocks. The rows' sums of magnitudes follow B's scales. Returns the rows' factors.
  __device__ __forceinline__ auto agree(const TileScales& row_scales, int t, uint32_t rank, uint32_t blocks) -> const
      float (&)[kTile] {
    const int operand = t / kTile, row = t % kTile;
    if (t == 0)
      hopper::copy_in_cluster(hopper::map_to_rank(hopper::shared_address(others), rank ^ 1), row_scales,
                              sizeof row_scales, hopper::map_to_rank(hopper::shared_address(&arrived), rank ^ 1));
    hopper::wait(&arrived, 0);
    const auto part = [&](uint32_t i) -> const TileScales& {
      if (i == rank) return row_scales;
      return others;
    };
    const auto scale_of = [&](uint32_t i) { return part(i)[operand][row]; };
    const auto sum_of = [&](uint32_t i) { return row_sums(part(i))[row]; };
    const RowScale own = row_scales[operand][row], common = operand == 1 ? own : scale_of_parts(blocks, scale_of);
    if (operand == 0) row_sums(agreed)[row] = sum_of_parts(blocks, common, scale_of, sum_of);
    if (t < 2 * kTile - kSumEntries) agreed[operand][row] = common;
    if (operand == 0) change[row] = power_of_two(max(exponent_of(own) - exponent_of(common), -126));
    sync_consumers();
    return change;
  }
};

}  // namespace sgemm::split
