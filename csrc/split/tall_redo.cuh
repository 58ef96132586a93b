// The redo of tall tiles. A few marked elements of a tile are dot products; groups of columns with more of them come
// from three bfloat16, which have float32's range.
//
// Idea:   the warp reads its 16 rows once more, a step of k at a time, and of B what a lane holds of the step's
//         operand, for the block's panel in shared memory has float16s. What these don't certify either are dot
//         products.
// Bound:  the instruction caches, as long as few tiles come here: so the loop over k is not unrolled, and one code is
//         for all depths.
#pragma once
#include "redone.cuh"
#include "tall_epilogue.cuh"

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

template <TallReads READS>
class TallRedo {
 public:
  // `at`: the lane's two rows. `steps`: of k.
  __device__ __forceinline__ TallRedo(const TallEpilogue& output, const TallRows& at, int steps)
      : output_(output), at_(at), steps_(steps), first_k_(place_of(READS, threadIdx.x % 4, 0)) {
    uint32_t largest[2] = {};
    each_step([&](const LineElements<1>(&x)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) largest[h] = max(largest[h], largest_magnitude(x[h]));
    });
    LineGuard guards[2] = {};
    uint32_t small[2] = {};
    each_step([&](const LineElements<1>(&x)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        guards[h].take<Fp16x3>(x[h], power_of_two(-row_exponent<Fp16x3>(largest[h])));
        TallPlanes(x[h][0], TallFactor(-row_exponent<Bf16x6>(largest[h])), small[h]);
      }
    });
    bool some_small = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      exponents_[h] = row_exponent<Bf16x6>(largest[h]);
      small_[h] = sum_of_quad(small[h]);
      const LineGuard guard = guards[h].of_line();
      words_[h] = row_word<Fp16x3>(largest[h], row_exponent<Fp16x3>(largest[h]), guard.small);
      output.shared_.rows_of_others[output.in_tile() + h] = sum_threshold<Fp16x3>(guard.sum);
      some_small = some_small || guard.small > 0;
    }
    some_small_ = __any_sync(~0u, some_small);
  }

  // Columns from `first` of the panel on. Unless none was (ALL), elements that were certain keep their values: so they
  // don't depend on what else is in the tile. `plain_cols`: the panel's scales are plain. Returns how many of the
  // lane's were computed again.
  template <bool ALL>
  __device__ __forceinline__ uint32_t group(int first, const TallColumns& panel, bool plain_cols) const {
    const Problem& p = output_.job_.p;
    const ConstMatrix b = p.b.matrix(output_.entry_);
    const int lane = threadIdx.x % 32;
    const uint32_t* const words = panel.words + first;
    const float* from_b[2];
    int k_left[2], exponents[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // The column that the lane holds of a block of eight, as TallPanel::fill has it.
      const int column = lane / 4, of_lane = column / 2, e = j * 2 + column % 2;
      const int64_t col = output_.column(first + of_lane * 4 + e);
      from_b[j] = b.data + col * b.col + first_k_ * b.row;
      k_left[j] = col < b.cols ? static_cast<int>(p.k) - first_k_ : 0;
      exponents[j] = kFiner - word_exponent(words[of_lane * 4 + e]);
    }
    const uint4* planes = panel.planes + first / TallTile::kCols * steps_ * 64 + lane;
    RowSums of_halves(steps_);
    float sums[2][4] = {};
    uint32_t small[2] = {}, of_rows = 0;
    int step = 0;
    each_step([&](const LineElements<1>(&x)[2]) {
      if constexpr (!ALL) {
        const RowPlanes<1> rows(x, power_of_two(-word_exponent(words_[0])), power_of_two(-word_exponent(words_[1])));
        of_halves.add(step, step == steps_ - 1, rows, 0, planes + step * 64);
      }
      const TallPlanes upper(x[0][0], TallFactor(-exponents_[0]), of_rows);
      const TallPlanes lower(x[1][0], TallFactor(-exponents_[1]), of_rows);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int on = step * TallTile::kStep;
        LineElements<1> y;
        read_column<READS>(y, from_b[j] + on * b.row, b.row, k_left[j] - on);
        const TallPlanes column(y[0], TallFactor(exponents[j]), small[j]);
        float fresh[4] = {};
        // Corrections first, then hi * hi.
#pragma unroll
        for (int order = 2; order >= 0; --order)
#pragma unroll
          for (int i = 0; i <= order; ++i)
            multiply<__nv_bfloat16>(fresh, upper.of[i], lower.of[i], column.of[order - i][0], column.of[order - i][1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[j][i] += fresh[i];
      }
      ++step;
    });
#pragma unroll
    for (int j = 0; j < 2; ++j) small[j] = sum_of_quad(small[j]);

    uint32_t wanted = 0xff;
    float certain_x[8];
    if constexpr (!ALL) {
      const int at = first + lane % 4 * 4;
      const TallRows rows = output_.begin_tile(at_.row - output_.in_tile(), words_);
      of_halves.finish(certain_x);
      wanted = output_.certify(rows, first, &panel.words[at], &panel.of_others[at], some_small_,
                               output_.plain_scales(words_, plain_cols), certain_x);
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
    failed = redo_inf(first, failed, &words[lane % 4 * 4], x);
    if (__any_sync(~0u, failed)) output_.redo_elements(at_, first, failed, x, 0);
    failed = output_.add(at_, first, x);
    if (__any_sync(~0u, failed)) output_.redo_elements(at_, first, failed, x, p.k_before);
    output_.store(at_, first, x);
    return __popc(wanted);
  }

 private:
  // Elements that failed for an Inf in their row, and none in their column, become alpha times the row's products with
  // its Inf and NaN, which alone decide. Returns the others. `words` are the lane's columns'.
  __device__ __forceinline__ uint32_t redo_inf(int first, uint32_t failed, const uint32_t* words, float (&x)[8]) const {
    const uint32_t wanted = failed & TallEpilogue::of_inf_rows(words_, words);
    if (!__any_sync(~0u, wanted)) return failed;
    const Problem& p = output_.job_.p;
    const ConstMatrix a = p.a.matrix(output_.entry_), b = p.b.matrix(output_.entry_);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll 1
      for (int quad = 0; quad < 8; ++quad) {
        const uint32_t mine = lane / 4 == quad ? wanted >> h * 4 & 0xf : 0;
        if (!__any_sync(~0u, mine)) continue;
        float sums[4] = {};
        output_.each_special(a, at_.row - output_.in_tile() + quad * 2 + h, [&](int64_t q, float special) {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (mine >> j & 1) sums[j] += special * *b.at(q, output_.col0_ + first + j * output_.apart_);
        });
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (mine >> j & 1) x[h * 4 + j] = p.alpha * sums[j];
      }
    }
    return failed & ~wanted;
  }

  // The lane's elements of each step of k, the next ones on their way meanwhile.
  template <class Use>
  __device__ __forceinline__ void each_step(const Use& use) const {
    const Problem& p = output_.job_.p;
    const ConstMatrix a = p.a.matrix(output_.entry_);
    const float* from = a.data + at_.row * a.row + first_k_ * a.col;
    int k_left = static_cast<int>(p.k) - first_k_;
    LineElements<1> next[2];
    const auto read = [&] {
      read_rows<READS, 1>(next, from, a, p.m - at_.row, k_left);
      from += TallTile::kStep * a.col;
      k_left -= TallTile::kStep;
    };
    read();
#pragma unroll 1
    for (int s = 0; s < steps_; ++s) {
      LineElements<1> x[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[h][0][e] = next[h][0][e];
      read();
      use(x);
    }
  }

  const TallEpilogue& output_;
  const TallRows& at_;
  const int steps_, first_k_;
  uint32_t words_[2], small_[2];
  int exponents_[2];
  bool some_small_;
};

// The tiles of a warp that were listed.
template <TallReads READS>
static __device__ __noinline__ void redo_tiles(const TallJob& job, uint32_t entry, int64_t n0, float* staged,
                                               TallWarp& shared, const TallColumns& panel, bool plain_cols, int steps,
                                               const TallEntry* list, uint32_t listed) {
  __syncwarp();
  const TallEpilogue output(job, entry, n0, staged, shared);
  const int cols = static_cast<int>(min(int64_t{job.cols}, job.p.n - n0));
  const uint32_t lane = threadIdx.x % 32;
  uint32_t redone = 0;  // by the lane: the counter is in memory, and all warps have but the one
  const auto redo_groups = [&](const TallEntry& of) {
    if (of.groups == 0) return;
    const TallRows at = output.begin_tile(int64_t{of.tile} * TallTile::kRows, {});
    const TallRedo<READS> redo(output, at, steps);
#pragma unroll 1
    for (int col = 0; col < cols; col += TallTile::kCols) {
      if (!(of.groups >> col / TallTile::kCols & 1)) continue;
      redone += of.all ? redo.template group<true>(col, panel, plain_cols)
                       : redo.template group<false>(col, panel, plain_cols);
    }
    output.end_tile(at);
    __syncwarp();
  };
#pragma unroll 1
  for (uint32_t first = 0; first < listed; first += 32) {
    TallEntry own = {};  // the lane's
    if (first + lane < listed) own = list[first + lane];
    output.redo_elements(list + first, own.count);
    redone += own.count;
    uint32_t left = __ballot_sync(~0u, own.groups != 0 || own.inf_rows != 0);
#pragma unroll 1
    for (; left; left &= left - 1) {
      const TallEntry& of = list[first + __ffs(left) - 1];
      if (lane == 0) redone += __popc(of.inf_rows) * cols;
      redo_groups(of);
      output.redo_inf_rows(of, panel.words);
    }
  }
  redone = __reduce_add_sync(~0u, redone);
  count_redone(redone_elements, lane == 0 ? redone : 0);
}

}  // namespace sgemm::split
