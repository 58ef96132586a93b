// Groups of columns of a tall tile of which the guard has not certified many elements: computed again from three
// bfloat16, which have float32's range.
//
// Idea:   the warp reads its 16 rows once more and splits them in registers; of B it reads and splits what a lane holds
//         of a step's operand, for the block's panel in shared memory has float16s. What these don't certify either are
//         dot products.
#pragma once
#include "tall_output.cuh"

namespace sgemm::split {

// A lane's elements of a step, of one line, times a power of two in two factors.
struct TallFactor {
  float first, second;
  __device__ __forceinline__ explicit TallFactor(int exponent)
      : first(power_of_two(min(exponent, 127))), second(power_of_two(exponent - min(exponent, 127))) {}
};

// Three planes of a lane's four elements of a step.
struct TallPlanes {
  uint32_t of[3][2];

  TallPlanes() = default;
  // Adds to `small` how many are small.
  __device__ __forceinline__ TallPlanes(const float (&x)[4], const TallFactor& by, uint32_t& small) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = x[i] * by.first * by.second;
      small += is_small<Bf16x6>(x[i], v[i]);
    }
    const QuadPlanes<Bf16x6> split(make_float4(v[0], v[1], v[2], v[3]));
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      of[i][0] = split.xy[i];
      of[i][1] = split.zw[i];
    }
  }
};

template <TallReads READS, int STEPS>
class TallRedo {
 public:
  // Of `at`, the lane's two rows.
  __device__ __forceinline__ TallRedo(const TallOutput& output, const TallRows& at) : output_(output), at_(at) {
    const Problem& p = output.job_.p;
    const ConstMatrix a = p.a.matrix(output.entry_);
    const int first_k = place_of(READS, threadIdx.x % 4, 0);
    read_rows<READS, STEPS>(x_, a.data + at.row * a.row + first_k * a.col, a, p.m - at.row,
                            static_cast<int>(p.k) - first_k);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t largest = largest_magnitude(x_[h]);
      exponents_[h] = row_exponent<Bf16x6>(largest);
      small_[h] = 0;
      const TallFactor by(-exponents_[h]);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) a_[h][s] = TallPlanes(x_[h][s], by, small_[h]);
      small_[h] = of_quad(small_[h], [](uint32_t a, uint32_t b) { return a + b; });
    }
  }

  // Columns from `first` of the panel on. Unless none was (ALL), elements that were certain keep their values: so they
  // don't depend on what else is in the tile.
  template <bool ALL>
  __device__ __forceinline__ void group(int first, const TallPanel<STEPS>& panel, TallWarp& shared) const {
    const uint32_t* const words = panel.words + first;
    uint32_t wanted = 0xff;
    float certain_x[8];
    if constexpr (!ALL) {
      RowPlanes<STEPS> planes;
      uint32_t of_rows[2];
      const bool some_small = split_rows<STEPS>(x_, planes, of_rows, shared.rows_of_others);
      const TallRows rows = output_.begin_tile(at_.row - threadIdx.x % 32 / 4 * 2, of_rows);
      multiply_rows<STEPS>(planes, panel.block(first / 8, 0), certain_x);
      const int at = first + threadIdx.x % 4 * 4;
      bool of_cols = true;
      for (int i = 0; i < 4; ++i) of_cols = of_cols && has_plain_scale(panel.words[at + i]);
      wanted = output_.certify(rows, first, &panel.words[at], &panel.of_others[at], some_small,
                               output_.plain_scales(of_rows, of_cols), certain_x);
    }
    const Problem& p = output_.job_.p;
    const ConstMatrix b = p.b.matrix(output_.entry_);
    const int lane = threadIdx.x % 32, first_k = place_of(READS, lane % 4, 0);
    float sums[2][4] = {};
    uint32_t small[2] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // The column that the lane holds of a block of eight, as TallPanel::fill has it.
      const int column = lane / 4, of_lane = column / 2, e = j * 2 + column % 2;
      const int64_t col = output_.col0_ - output_.lane_col() + first + place_of(output_.job_.stores, of_lane, e);
      const TallFactor by(kFiner - word_exponent(words[of_lane * 4 + e]));
      const int k_left = col < b.cols ? static_cast<int>(p.k) - first_k : 0;
      const float* const from = b.data + col * b.col + first_k * b.row;
      LineElements<STEPS> x;
      read_column<READS>(x, from, b.row, k_left);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const TallPlanes y(x[s], by, small[j]);
        float fresh[4] = {};
        // Corrections first, then hi * hi.
#pragma unroll
        for (int order = 2; order >= 0; --order)
#pragma unroll
          for (int i = 0; i <= order; ++i)
            multiply<__nv_bfloat16>(fresh, a_[0][s].of[i], a_[1][s].of[i], y.of[order - i][0], y.of[order - i][1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[j][i] += fresh[i];
      }
      small[j] = of_quad(small[j], [](uint32_t a, uint32_t b) { return a + b; });
    }
    // Element i of the lane: row i / 4, column i % 4, of which two lie in each block of eight.
    float x[8];
    uint32_t failed = 0;
    int of_alpha;
    const float alpha = frexpf(p.alpha, &of_alpha);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i / 4, j = i % 4 / 2, odd = i % 2;
      const float sum = sums[j][h * 2 + odd];
      // Who holds the count of the lane's column.
      const uint32_t of_col = __shfl_sync(~0u, small[j], (lane % 4 * 2 + odd) * 4);
      const uint32_t word = words[lane % 4 * 4 + i % 4];
      const int exponent = exponents_[h] + word_exponent(word) - kFiner;
      const bool certain = isfinite(sum) && fabsf(sum) >= Bf16x6::kThreshold * static_cast<float>(small_[h] + of_col);
      const bool overflows = isinf(unscaled(sum, exponent)) && !surely_overflows(sum, exponent);
      if ((!certain || overflows) && output_.inside(at_, first, i)) failed |= 1u << i & wanted;
      x[i] = unscaled(alpha * sum, exponent + of_alpha);
      if (!ALL) x[i] = wanted >> i & 1 ? x[i] : certain_x[i];
      if (!output_.inside(at_, first, i)) wanted &= ~(1u << i);
    }
    count_redone(redone_elements, __popc(wanted));
    if (__any_sync(~0u, failed)) output_.redo_elements(at_, first, failed, x, 0);
    failed = output_.add(at_, first, x);
    if (__any_sync(~0u, failed)) output_.redo_elements(at_, first, failed, x, p.k_before);
    output_.store(at_, first, x);
  }

 private:
  const TallOutput& output_;
  const TallRows& at_;
  LineElements<STEPS> x_[2];
  TallPlanes a_[2][STEPS];
  uint32_t small_[2];
  int exponents_[2];
};

// The tiles of a warp that were listed.
template <TallReads READS, int STEPS>
static __device__ __noinline__ void redo_tiles(const TallJob& job, uint32_t entry, int64_t n0, float* staged,
                                               TallWarp& shared, TallPanel<STEPS> panel, const TallEntry* list,
                                               uint32_t listed) {
  __syncwarp();
  const TallOutput output(job, entry, n0, staged, shared);
  const int cols = static_cast<int>(min(int64_t{job.cols}, job.p.n - n0));
#pragma unroll 1
  for (uint32_t i = 0; i < listed; ++i) {
    output.redo_elements(list[i]);
    if (list[i].groups == 0) continue;
    const TallRows at = output.begin_tile(int64_t{list[i].tile} * TallTile::kRows, {});
    const TallRedo<READS, STEPS> redo(output, at);
#pragma unroll 1
    for (int first = 0; first < cols; first += TallTile::kCols) {
      if (!(list[i].groups >> first / TallTile::kCols & 1)) continue;
      if (list[i].all)
        redo.template group<true>(first, panel, shared);
      else
        redo.template group<false>(first, panel, shared);
    }
    output.end_tile(at);
  }
}

}  // namespace sgemm::split
