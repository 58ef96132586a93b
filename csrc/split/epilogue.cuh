// The epilogue: a tile's sums become D, through the guard.
#pragma once
#include "../epilogue/epilogue.cuh"
#include "second_look.cuh"

namespace sgemm::split {

// D = f(x + beta C). Not where C is the sum of earlier pieces of k and its sum with x may be finite after all.
__device__ __forceinline__ bool store_element(const Problem& p, const float* c, float* d, float x) {
  const float sum = add_c(p, x, c);
  if (p.k_before > 0 && may_be_finite(sum, x, *c)) return false;
  *d = activated(p.activation, sum);
  return true;
}

template <class Shape>
static __device__ __noinline__ uint32_t store_staged(const Job& job, TileIndex tile, const uint32_t (&words)[2][kTile],
                                                     int first, int cols, int t, const float* staged, int band,
                                                     bool carefully, int index);

// A tile's sums on their way to D, through the guard; each warp has 16 rows of them.
//
// Most tiles are plain: they are scaled in the accumulators and go there in as few instructions as can be, for the
// tensor cores wait, and a kernel of one tile a block waits for each of its instructions. Where rows have thresholds,
// elements are first compared with them there. Only bands of columns with an element that fails, or with scales that
// aren't plain, and all where D is more than a scaled sum, go through shared memory, so that lanes store neighbours, in
// short loops.
template <class Shape>
class TileEpilogue {
 public:
  using Sums = float[Shape::kSums];
  using Certainty = Certain<Shape::kSums>;

  // `words` of the tile's rows and columns. Of each warp's columns the block finishes `cols` from `first` on.
  __device__ __forceinline__ TileEpilogue(const Job& job, const TileIndex& tile, const uint32_t (&words)[2][kTile],
                                          int first, int cols, int t)
      : job_(job),
        words_(words),
        rows_(&words[0][Shape::warp_row(t)]),
        cols_(words[1]),
        first_(first),
        share_(cols),
        t_(t),
        tile_(tile),
        row0_(int64_t{tile.row} * Shape::kRows + Shape::warp_row(t)),
        col0_(int64_t{tile.col} * Shape::kCols),
        rows_left_(static_cast<int>(min(job.p.m - row0_, int64_t{16}))),
        cols_left_(static_cast<int>(min(job.p.n - col0_, int64_t{Shape::kHalfSize ? first + cols : Shape::kCols}))),
        bands_(bits(first / 32, (max(first, min(first + cols, cols_left_)) + 31) / 32)),
        d_(job.p.d.matrix(tile.batch).at(row0_, col0_)),
        c_(job.p.beta == 0 ? nullptr : job.p.c.matrix(tile.batch).at(row0_, col0_)) {}

  // Copies the words to memory, for those who redo what was marked.
  __device__ __forceinline__ void leave_words(uint32_t* to) const {
    for (int i = t_ % 32; i < 2 * kTile; i += 32) to[i] = words_[i / kTile][i % kTile];
  }

  // Whether its rows and columns have plain scales and no thresholds.
  __device__ __forceinline__ bool is_plain() const {
    return all_of_words([](uint32_t word) { return split::is_plain(word); });
  }

  // Whether the warp's sums need no test, are only scaled, and all neighbours are there, so that store_plain() does.
  // DOWN: those of a column may be side by side.
  template <bool DOWN>
  __device__ __forceinline__ bool stores_plain() const {
    const bool whole = rows_left_ == 16 && (first_ | cols_left_) % 32 == 0;
    return is_plain() & job_.scaled_only & (job_.down ? DOWN : job_.pairs & whole);
  }
  template <bool DOWN>
  __device__ __forceinline__ void store_plain(const Sums& sum) const {
    if (DOWN && __builtin_expect(job_.down, false))
      store_down(sum, bands_);
    else
      store_pairs<true>(sum, bands_);
  }

  // Of sums whose magnitude times `factor` is no more than |A||B|.
  __device__ __forceinline__ Certainty certain(const Sums& x, float factor) const {
    return certain_elements(
        x, factor, rows_, cols_, rows_left_, [&](int col) { return inside(col); }, t_ % 32);
  }

  // An element that the guard doesn't certify is not stored and gets a mask. Returns the warp's mark. `known`: what is
  // certain whatever the sums are. RECORDED: a pass has split both operands; then what is seldom needed is in a
  // function of its own.
  template <bool RECORDED>
  __device__ __forceinline__ uint32_t store(Sums& sum, const Certainty& known, float* staging, int index) const {
    staging += t_ / 32 * kStagedFloats;
    uint32_t careful = 0;
    if (!is_plain()) {
      if (!all_of_words([](uint32_t word) { return has_plain_scale(word); })) careful = bands_;
      Certainty sure = certain(sum, 1) | known;
      if (bands_ & sure.uncertain_bands()) {
        sure.add_outside(
            rows_left_, [&](int col) { return inside(col); }, t_ % 32);
        const uint32_t doubtful = bands_ & sure.uncertain_bands();
        uint32_t* const list = reinterpret_cast<uint32_t*>(staging);
        look_again<Shape, RECORDED>(job_, tile_, words_, sum, doubtful, t_, list, sure);
        careful |= doubtful & sure.uncertain_bands();
      }
    }
    const uint32_t staged = job_.scaled_only ? careful : bands_, direct = bands_ & ~staged;
    if (direct != 0) {
      if (job_.down)
        store_down(sum, direct);
      else if (job_.pairs)
        store_pairs<false>(sum, direct);
      else
        store_singles(sum, direct, staging);
    }
    uint32_t mark = 0;
#pragma unroll 1
    for (uint32_t bands = staged; bands; bands &= bands - 1) {
      const int band = __ffs(bands) - 1;
      const bool carefully = careful >> band & 1;
      stage_band<Shape>(sum, band, staging, hopper::opaque(t_ % 32));
      __syncwarp();
      if constexpr (RECORDED)
        mark += store_staged<Shape>(job_, tile_, words_, first_, share_, t_, staging, band, carefully, index);
      else
        mark += store_band(staging, band, carefully, index);
      __syncwarp();
    }
    return mark;
  }

  // A band whose sums have been staged, element by element if some have failed or by other scales than plain ones.
  __device__ __forceinline__ uint32_t store_band(const float* staged, int band, bool carefully, int index) const {
    const int lane = t_ % 32;
    if (carefully || !job_.plain_alpha || job_.p.k_before > 0 || !(job_.quads || job_.down))
      return store_certified(staged, band, lane, index);
    if (job_.quads)
      store_quads(staged, band, lane);
    else
      store_band_down(staged, band, lane);
    return 0;
  }

 private:
  // Bits from `first` up to `last`.
  __device__ __forceinline__ static uint32_t bits(int first, int last) { return (1u << last) - (1u << first); }

  // Whether all words of the warp's rows and columns hold what is asked for.
  template <class Holds>
  __device__ __forceinline__ bool all_of_words(const Holds& holds) const {
    const uint4 words = *reinterpret_cast<const uint4*>(&cols_[t_ % (Shape::kCols / 4) * 4]);
    return __all_sync(~0u, holds(rows_[t_ % 16]) & holds(words.x) & holds(words.y) & holds(words.z) & holds(words.w));
  }

  // Two neighbours of row r of a thread's accumulators, and of row r + 8, in a band's i-th eight columns.
  struct Scaled {
    float2 x, y;
  };
  __device__ __forceinline__ Scaled scaled(const Sums& sum, int band, int i, int j, float upper, float lower) const {
    const uint2 words = *reinterpret_cast<const uint2*>(&cols_[band * 32 + i * 8 + j]);
    const float left = word_scale(words.x), right = word_scale(words.y);
    const float* four = &sum[band * 16 + i * 4];
    return {{four[0] * (upper * left), four[1] * (upper * right)},
            {four[2] * (lower * left), four[3] * (lower * right)}};
  }

  template <bool WHOLE>
  __device__ __forceinline__ void store_pairs(const Sums& sum, uint32_t bands) const {
    const int lane = t_ % 32, r = lane / 4, j = lane % 4 * 2;
    const float upper = job_.p.alpha * word_scale(rows_[r]), lower = job_.p.alpha * word_scale(rows_[r + 8]);
    const float beta = job_.p.beta;
    float* const to = d_ + r * job_.p.d.row + j;
    float* const below = to + 8 * job_.p.d.row;
    const float* const from = c_ + r * job_.p.c.row + j;
    const float* const from_below = from + 8 * job_.p.c.row;
#pragma unroll
    for (int band = 0; band < Shape::kBands; ++band) {
      if (!(bands >> band & 1)) continue;
      Scaled s[4];  // D may be C: all is read before the first is written
      bool in_x[4], in_y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = band * 32 + i * 8;
        in_x[i] = WHOLE || (r < rows_left_ && inside(col + j));
        in_y[i] = WHOLE || (r + 8 < rows_left_ && inside(col + j));
        s[i] = scaled(sum, band, i, j, upper, lower);
      }
      if (beta != 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int col = band * 32 + i * 8;
          float2 add = {}, add_below = {};
          if (in_x[i]) add = *reinterpret_cast<const float2*>(from + col);
          if (in_y[i]) add_below = *reinterpret_cast<const float2*>(from_below + col);
          s[i].x = add_c(beta, add, s[i].x);
          s[i].y = add_c(beta, add_below, s[i].y);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = band * 32 + i * 8;
        if (in_x[i]) hopper::store(to + col, s[i].x);
        if (in_y[i]) hopper::store(below + col, s[i].y);
      }
    }
  }

  // Where a column's rows lie side by side: eight lanes have a sector.
  __device__ __forceinline__ void store_down(const Sums& sum, uint32_t bands) const {
    const int lane = t_ % 32, r = lane / 4, j = lane % 4 * 2;
    const float upper = job_.p.alpha * word_scale(rows_[r]), lower = job_.p.alpha * word_scale(rows_[r + 8]);
    const int64_t apart = job_.p.d.col;
#pragma unroll
    for (int band = 0; band < Shape::kBands; ++band) {
      if (!(bands >> band & 1)) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = band * 32 + i * 8 + j;
        const Scaled s = scaled(sum, band, i, j, upper, lower);
        float* const to = d_ + r + col * apart;
        const float* const from = job_.p.beta == 0 ? nullptr : c_ + r * job_.p.c.row + col * job_.p.c.col;
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const auto store = [&](int row, float sum) {
            if (r + row < rows_left_ && inside(col + x))
              to[row + x * apart] = add_c(job_.p, sum, from + row * job_.p.c.row + x * job_.p.c.col);
          };
          store(0, x == 0 ? s.x.x : s.x.y);
          store(8, x == 0 ? s.y.x : s.y.y);
        }
      }
    }
  }

  // The same of a staged band, with an f: half of the lanes have a column.
  __device__ __forceinline__ void store_band_down(const float* staged, int band, int lane) const {
    const int r = lane % 16;
    const float scale = job_.p.alpha * word_scale(rows_[r]);
#pragma unroll 1
    for (int col = band * 32 + lane / 16; col < band * 32 + 32; col += 2) {
      if (r >= rows_left_ || !inside(col)) continue;
      const float x = staged[place_in_band(r, col % 32 / 4) + col % 4] * (scale * word_scale(cols_[col]));
      d_[r + col * job_.p.d.col] = finished(job_.p, x, c_ + r * job_.p.c.row + col * job_.p.c.col);
    }
  }

  // Where neighbours can't be stored at once: a column per lane, by way of shared memory.
  __device__ __forceinline__ void store_singles(const Sums& sum, uint32_t bands, float* staging) const {
    const int lane = t_ % 32, r = lane / 4, j = lane % 4 * 2;
    const float upper = job_.p.alpha * word_scale(rows_[r]), lower = job_.p.alpha * word_scale(rows_[r + 8]);
    const float beta = job_.p.beta;
    const float* const staged = staging + lane % 4;
#pragma unroll
    for (int band = 0; band < Shape::kBands; ++band) {
      if (!(bands >> band & 1)) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Scaled s = scaled(sum, band, i, j, upper, lower);
        stage_pairs(s.x, s.y, i, staging, lane);
      }
      __syncwarp();
      const int col = band * 32 + lane, rows = inside(col) ? rows_left_ : 0;
      float* to = d_ + col * job_.p.d.col;
      if (beta == 0) {
#pragma unroll
        for (int row = 0; row < 16; ++row, to += job_.p.d.row)
          if (row < rows) *to = staged[place_in_band(row, lane / 4)];
      } else {
        const float* from = c_ + col * job_.p.c.col;
#pragma unroll 1
        for (int row = 0; row < rows; ++row, to += job_.p.d.row, from += job_.p.c.row)
          *to = add_c(job_.p, staged[place_in_band(row, lane / 4)], from);
      }
      __syncwarp();
    }
  }

  // A quad in row lane / 8 and in every fourth from there on.
  __device__ __forceinline__ void store_quads(const float* staged, int band, int lane) const {
    const int q = lane % 8, col = band * 32 + q * 4;
    if (!inside(col)) return;
    const uint4 words = *reinterpret_cast<const uint4*>(&cols_[col]);
#pragma unroll 1
    for (int r = lane / 8; r < rows_left_; r += 4) {
      const float4 sums = *reinterpret_cast<const float4*>(staged + place_in_band(r, q));
      const float scale = job_.p.alpha * word_scale(rows_[r]), beta = job_.p.beta;
      float x[4] = {sums.x * (scale * word_scale(words.x)), sums.y * (scale * word_scale(words.y)),
                    sums.z * (scale * word_scale(words.z)), sums.w * (scale * word_scale(words.w))};
      if (beta != 0) {
        const float4 add = *reinterpret_cast<const float4*>(c_ + r * job_.p.c.row + col);
        add_c(beta, {add.x, add.y, add.z, add.w}, x);
      }
      activate(job_.p.activation, x);
      hopper::store(d_ + r * job_.p.d.row + col, make_float4(x[0], x[1], x[2], x[3]));
    }
  }

  // A column per lane, but for what has failed, and whatever the scales.
  __device__ __forceinline__ uint32_t store_certified(const float* staged, int band, int lane, int index) const {
    const int col = band * 32 + lane, rows = inside(col) ? rows_left_ : 0;
    const uint32_t right = cols_[col];
    const auto sum = [&](int r) { return staged[place_in_band(r, lane / 4) + lane % 4]; };
    uint32_t failed = 0;
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      const float x = sum(r);
      if (isnan(x) && (__float_as_uint(x) == kGivenUp || !is_nan_of_operands(x, rows_[r], right))) failed |= 1u << r;
    }
    // In a short loop, for its instructions are not in the caches. An element with plain scales is multiplied as in a
    // plain tile, whatever the scales of the others here, for the same bits.
    const bool plain = job_.plain_alpha && has_plain_scale(right);
    int of_alpha;
    const float alpha = frexpf(job_.p.alpha, &of_alpha);
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      float x = sum(r);
      if (plain && has_plain_scale(rows_[r])) {
        x *= job_.p.alpha * word_scale(rows_[r]) * word_scale(right);
      } else {
        const int exponent = word_exponent(rows_[r]) + word_exponent(right);
        if (isinf(unscaled(x, exponent)) && !surely_overflows(x, exponent)) failed |= 1u << r;
        x = unscaled(alpha * x, exponent + of_alpha);
      }
      if (!(failed >> r & 1) && !store(r, col, x)) failed |= 1u << r;
    }
    if (!__any_sync(~0u, failed)) return 0;
    const int slot = Shape::kHalfSize ? band * 2 + first_ / 16 % 2 : band;
    job_.masks[(int64_t{index} * Shape::kSlots + slot) * kConsumers + t_] = static_cast<uint16_t>(failed);
    return (__reduce_add_sync(~0u, __popc(failed)) << 8) | 1u << slot;
  }

  __device__ __forceinline__ bool inside(int col) const {
    return (!Shape::kHalfSize || col >= first_) && col < cols_left_;
  }
  __device__ __forceinline__ bool store(int r, int col, float x) const {
    return store_element(job_.p, c_ + r * job_.p.c.row + col * job_.p.c.col, d_ + r * job_.p.d.row + col * job_.p.d.col,
                         x);
  }

  const Job& job_;
  const uint32_t (&words_)[2][kTile];
  const uint32_t *rows_, *cols_;  // words of the warp's
  const int first_, share_, t_;
  const TileIndex tile_;
  const int64_t row0_, col0_;  // of the warp
  const int rows_left_, cols_left_;
  const uint32_t bands_;  // that the block finishes, by bits
  float* d_;              // there
  const float* c_;
};

// TileEpilogue::store_band(), a function of its own: the more code lies between what ordinary tiles run through, the
// longer a short kernel waits for its instructions. Where registers are short, as in a streamed kernel, a call costs
// more.
template <class Shape>
static __device__ __noinline__ uint32_t store_staged(const Job& job, TileIndex tile, const uint32_t (&words)[2][kTile],
                                                     int first, int cols, int t, const float* staged, int band,
                                                     bool carefully, int index) {
  return TileEpilogue<Shape>(job, tile, words, first, cols, t).store_band(staged, band, carefully, index);
}

}  // namespace sgemm::split
