// The splitters of a product that splits both operands. A warp has 32 rows of A, or columns of B, which are rows here
// too: each lane reads a row of a stage's raw panel, and writes its planes.
//
// Scales: a row's scale is found while the product runs. The first elements choose it, with kHeadroom binades to spare.
//         A larger element later makes it coarser. Its step is then split again, and the row's sums of earlier steps
//         are multiplied to match (Rescaling). This is rare.
// Guard:  with its last scale a row gets its number of small elements, each weighted by the scale that it was split at,
//         and its statistics. The sum of magnitudes is an upper bound.
#pragma once
#include "../gemm/tile_scheduler.cuh"
#include "../guard/guard.cuh"
#include "both_ring.cuh"

namespace sgemm::split {

// A lane's row of a tile.
class SplitRow {
 public:
  // Splits a step from the raw panel to the stage's panel. Returns true if some of the warp's rows have a factor other
  // than 1 in `factors`. `inside`: the row is part of the operand. Others are
  // zeros, and have no small elements.
  template <bool ALONG_K>
  __device__ __forceinline__ bool split(const char* raw, bool inside, int step, char* panel, float* factors) {
    const int lane = threadIdx.x % 32;
    const auto read = [&](int k, float(&x)[8]) { read_row<ALONG_K>(raw, lane, k, x); };
    Extremes found = write_planes(read, lane, panel);
    bool rescales = false;
    const bool fits = __hblt2(found.largest, __float2half2_rn(Fp16x3::kLimit));  // false if there is a NaN
    if (__builtin_expect(__any_sync(~0u, !fits), false)) {
      const float change = coarsen(read);
      rescales = __any_sync(~0u, change != 1);
      factors[lane] = change;
      found = write_planes(read, lane, panel);
    }
    const float most = fmaxf(__low2float(found.largest), __high2float(found.largest));
    sum_ = __fadd_ru(sum_, found.sum);
    if (most > largest_) {
      largest_ = most;
      step_ = step;
    }
    const bool some_small = inside && !__hbge2(found.smallest, __float2half2_rn(Fp16x3::kSmall));
    if (__builtin_expect(some_small, false)) count_small(read);
    return rescales;
  }

  // Returns the row's packed scale.
  __device__ __forceinline__ RowScale row_scale() const { return pack_found_scale(largest_ > 0, exponent_, small_); }

  // Returns the row's packed statistics. `element(k)` reads the row.
  template <class Element>
  __device__ __forceinline__ RowStats row_stats(const Element& element) const {
    uint32_t place = kNoPlace;
    float most = 0;
    for (int k = step_ * kStep; k < (step_ + 1) * kStep; ++k) {
      const float x = fabsf(element(k));
      if (x > most) place = k;
      most = fmaxf(most, x);
    }
    return pack_row_stats<Fp16x3>(__fmul_ru(sum_, kSummedTogether * kRounding), place);
  }

 private:
  static constexpr int kHeadroom = 3;               // binades
  static constexpr int kSummedTogether = 4;         // elements whose largest bounds all of them
  static constexpr float kRounding = 1 + 0x1p-10f;  // exceeds the rounding error of hi
  // Sums are multiples of 2^-59. So 45 binades for a row and 45 for a column leave them exact. Beyond that, earlier
  // sums are off by a few 2^-149, or by 2^-83 at a change of more than 126 binades: negligible for a product that
  // passes the test for one more small element.
  static constexpr int kExactChange = 45;

  // The smallest and the largest of a step's magnitudes, rounded to hi, of even and of odd elements. NaN if there is
  // one. `sum` adds the largest of each kSummedTogether.
  struct Extremes {
    __half2 smallest, largest;
    float sum;
  };

  template <class Read>
  __device__ __forceinline__ Extremes write_planes(const Read& read, int lane, char* panel) const {
    const float by = power_of_two(-exponent_);
    Extremes all = {__float2half2_rn(Fp16x3::kLimit), __float2half2_rn(0), 0};
    float next[8];
    read(0, next);
#pragma unroll
    for (int k = 0; k < kStep; k += 8) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = next[i];
      if (k + 8 < kStep) read(k + 8, next);  // the compiler would not move it before the writes
      uint32_t hi[4], lo[4];
      __half2 largest = __float2half2_rn(0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t planes[2];
        Fp16x3::split(x[2 * i] * by, x[2 * i + 1] * by, planes);
        hi[i] = planes[0];
        lo[i] = planes[1];
        const __half2 magnitudes = __habs2(*reinterpret_cast<const __half2*>(&hi[i]));
        all.smallest = __hmin2_nan(all.smallest, magnitudes);
        largest = __hmax2_nan(largest, magnitudes);
      }
      all.largest = __hmax2_nan(all.largest, largest);
      all.sum = __fadd_ru(__fadd_ru(all.sum, __low2float(largest)), __high2float(largest));
      write_row(panel, lane, k, 0, hi);
      write_row(panel, lane, k, 1, lo);
    }
    return all;
  }

  // Calls `use` with each element of a step. The loop is short, because its callers are rare.
  template <class Read, class Use>
  __device__ __forceinline__ static void for_each(const Read& read, const Use& use) {
#pragma unroll 1
    for (int k = 0; k < kStep; k += 8) {
      float x[8];
      read(k, x);
#pragma unroll
      for (float element : x) use(element);
    }
  }

  // Makes the row's scale coarser if elements are above its limit. Returns the factor of the sums of earlier steps.
  template <class Read>
  __device__ __forceinline__ float coarsen(const Read& read) {
    float most = 0;
    for_each(read, [&](float x) {
      most = fmaxf(most, fabsf(x));
      if (isnan(x)) small_ = NAN;
    });
    if (most == INFINITY) small_ += INFINITY;
    const int wanted = row_exponent<Fp16x3>(__float_as_uint(most)) + kHeadroom;
    if (most == INFINITY || wanted <= exponent_ + kHeadroom) return 1;
    const float change = power_of_two(max(exponent_ - wanted, -126));
    exponent_ = wanted;
    if (largest_ == 0) {
      first_ = exponent_;
      return 1;
    }
    largest_ *= change;
    sum_ = __fmul_ru(sum_, change);
    small_ = __fmaf_ru(small_, change, exponent_ - first_ > kExactChange);
    return change;
  }

  template <class Read>
  __device__ __forceinline__ void count_small(const Read& read) {
    const SmallElements small(exponent_);
    uint32_t count = 0;
    for_each(read, [&](float x) { count += small.holds(x); });
    small_ = __fadd_ru(small_, static_cast<float>(count));
  }

  int exponent_ = kNoScale, first_ = kNoScale, step_ = 0;
  float largest_ = 0;  // magnitude, in the step `step_` and the row's scale
  float small_ = 0;    // weighted count for pack_found_scale()
  float sum_ = 0;      // of the largest of each kSummedTogether elements, in the row's scale
};

// Splits 32 rows of an operand in all of the block's tiles. Called by R::kSplitters warps.
template <class R>
__device__ void split_panels(const Job& job, char* ring, BothShared<R>& shared, int warp) {
  using Shape = typename R::Shape;
  constexpr int kWarpsOfA = Shape::kRows / kLines;
  const int lane = threadIdx.x % 32;
  const bool of_a = warp < kWarpsOfA;
  const Operand& x = of_a ? job.a : job.b;
  const int in_tile = (of_a ? warp : warp - kWarpsOfA) * kLines;  // the warp's first row
  char *const panels = ring + warp * kLinesBytes, *const raw = panels + R::kBytes;
  uint64_t *const raw_full = shared.raw_full[!of_a], *const raw_empty = shared.raw_empty[!of_a];
  const TileScheduler scheduler(job);
  PipelineState<R::kRawStages> from;
  PipelineState<R::kStages> at;
  PipelineState<2> buffer;
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
    const TileIndex tile = job.tile_at(index);
    const int row = (of_a ? tile.row * Shape::kRows : tile.col * Shape::kCols) + in_tile;
    SplitRow own;
#pragma unroll 1
    for (int step = 0; step < job.steps; ++step) {
      hopper::wait(&raw_full[from.stage], from.parity);
      hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
      char* const panel = panels + at.stage * R::kStageBytes;
      bool rescales = false;
      if (row < x.size) {
        const char* const raw_panel = raw + from.stage * R::kStageBytes;
        float* const factors = &shared.rescaling.factor[at.stage][warp * kLines];
        const bool inside = row + lane < x.size;
        rescales = x.along_k ? own.split<true>(raw_panel, inside, step, panel, factors)
                             : own.split<false>(raw_panel, inside, step, panel, factors);
      } else if (step < R::kStages) {  // the stages of later steps are zeros then
        for (int i = lane * 16; i < kLinesBytes; i += 32 * 16) *reinterpret_cast<uint4*>(panel + i) = {};
      }
      hopper::fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
        hopper::arrive(&raw_empty[from.stage]);
        shared.rescaling.some[at.stage][warp] = rescales;
        hopper::arrive(&shared.full[at.stage]);
      }
      from.advance();
      at.advance();
    }
    hopper::wait(&shared.scales_empty[buffer.stage], buffer.parity ^ 1);
    if (warp == 0 && lane == 0) shared.tiles[buffer.stage] = tile;
    const RowScale row_scale = shared.row_scales[buffer.stage][!of_a][in_tile + lane] = own.row_scale();
    if (threshold_of(row_scale) > 0 && row + lane < x.size) {
      const int64_t depth = job.depth(tile.batch);
      x.row_stats[job.first_row(x, tile.batch) + row + lane] =
          own.row_stats([&](int k) { return x.within(depth, tile.batch, row + lane, k); });
    }
    __syncwarp();
    if (lane == 0) hopper::arrive(&shared.scales_full[buffer.stage]);
    buffer.advance();
  }
}

}  // namespace sgemm::split
