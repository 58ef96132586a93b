// The epilogue: a tile's sums become D, through the guard.
#pragma once
#include "../guard/second_look.cuh"
#include "warp_rows.cuh"

namespace sgemm::split {

// D = f(x + beta C). Not where C is the sum of earlier pieces of k and their sum in order of k may be another.
__device__ __forceinline__ bool store_element(const Problem& p, const float* c, float* d, float x) {
  const float sum = add_c(p, x, c);
  if (p.k_before > 0 && may_differ_in_order(sum, x, *c)) return false;
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
class TileEpilogue : public WarpRows<Shape> {
 public:
  using Base = WarpRows<Shape>;
  using typename Base::Sums;
  using Certainty = Certain<Shape::kSums>;
  using Base::Base;

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
    else if (__builtin_expect(job_.cut_quads, false))
      store_quads(sum);
    else
      this->template store_pairs<true>(sum, bands_);
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
    uint32_t careful = 0, given_up = 0;
    if (!is_plain()) {
      if (!all_of_words([](uint32_t word) { return has_plain_scale(word); })) careful = bands_;
      Certainty sure = certain(sum, 1) | known;
      if (bands_ & sure.uncertain_bands()) {
        sure.add_outside(
            rows_left_, [&](int col) { return inside(col); }, t_ % 32);
        const uint32_t doubtful = bands_ & sure.uncertain_bands();
        if (gives_up(sure, doubtful)) {
          given_up = doubtful;
        } else {
          uint32_t* const list = reinterpret_cast<uint32_t*>(staging);
          look_again<Shape, RECORDED>(job_, tile_, words_, sum, doubtful, t_, list, sure);
          careful |= doubtful & sure.uncertain_bands();
        }
      }
    }
    const uint32_t staged = (job_.scaled_only ? careful : bands_) & ~given_up;
    const uint32_t direct = bands_ & ~staged & ~given_up;
    if (direct != 0) store_direct(sum, direct, staging);
    uint32_t mark = 0;
#pragma unroll 1
    for (uint32_t bands = given_up; bands; bands &= bands - 1) {
      const int band = __ffs(bands) - 1;
      mark |= mark_failed((1u << rows_of(band * 32 + t_ % 32)) - 1, band, index);
    }
#pragma unroll 1
    for (uint32_t bands = staged; bands; bands &= bands - 1) {
      const int band = __ffs(bands) - 1;
      const bool carefully = careful >> band & 1;
      stage_any_band<Shape>(sum, band, staging, hopper::opaque(t_ % 32));
      __syncwarp();
      if constexpr (RECORDED)
        mark |= store_staged<Shape>(job_, tile_, words_, first_, share_, t_, staging, band, carefully, index);
      else
        mark |= store_band(staging, band, carefully, index);
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
      store_band_quads(staged, band, lane);
    else
      store_band_down(staged, band, lane);
    return 0;
  }

 private:
  // Whether all words of the warp's rows and columns hold what is asked for.
  template <class Holds>
  __device__ __forceinline__ bool all_of_words(const Holds& holds) const {
    const uint4 words = *reinterpret_cast<const uint4*>(&cols_[t_ % (Shape::kCols / 4) * 4]);
    return __all_sync(~0u, holds(rows_[t_ % 16]) & holds(words.x) & holds(words.y) & holds(words.z) & holds(words.w));
  }

  // A staged band where neighbours of D lie in a column, with C and f: half of the lanes have a column.
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

  // A quad in row lane / 8 and in every fourth from there on.
  __device__ __forceinline__ void store_band_quads(const float* staged, int band, int lane) const {
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
    const int col = band * 32 + lane, rows = rows_of(col);
    const uint32_t right = cols_[col];
    const auto sum = [&](int r) { return staged[place_in_band(r, lane / 4) + lane % 4]; };
    uint32_t failed = 0;
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      const float x = sum(r);
      if (isnan(x) && (__float_as_uint(x) == kGivenUp || !is_nan_of_operands(x, rows_[r], right))) failed |= 1u << r;
    }
    // An element with plain scales is multiplied as in a plain tile, whatever the scales of the others here, for the
    // same bits. The loops are short, for their instructions are not in the caches.
    const bool plain = job_.plain_alpha && has_plain_scale(right);
    const auto plainly_scaled = [&](int r) {
      return sum(r) * (job_.p.alpha * word_scale(rows_[r]) * word_scale(right));
    };
    const auto is_plain_or_redone = [](uint32_t word) { return has_plain_scale(word) || is_inf_row(word); };
    if (job_.scaled_only && __all_sync(~0u, is_plain_or_redone(right) && is_plain_or_redone(rows_[lane % 16]))) {
#pragma unroll 4
      for (int r = 0; r < rows; ++r)
        if (!(failed >> r & 1))
          d_[r * job_.p.d.row + col * job_.p.d.col] =
              add_c(job_.p, plainly_scaled(r), c_ + r * job_.p.c.row + col * job_.p.c.col);
      return __any_sync(~0u, failed) ? mark_failed(failed, band, index) : 0;
    }
    int of_alpha;
    const float alpha = frexpf(job_.p.alpha, &of_alpha);
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      float x = sum(r);
      if (plain && has_plain_scale(rows_[r])) {
        x = plainly_scaled(r);
      } else {
        const int exponent = word_exponent(rows_[r]) + word_exponent(right);
        if (isinf(unscaled(x, exponent)) && !surely_overflows(x, exponent)) failed |= 1u << r;
        x = unscaled(alpha * x, exponent + of_alpha);
      }
      if (!(failed >> r & 1) && !store(r, col, x)) failed |= 1u << r;
    }
    return __any_sync(~0u, failed) ? mark_failed(failed, band, index) : 0;
  }

  // Rows of a lane's column, by bits. Returns the slot's bit of the warp's mark.
  __device__ __forceinline__ uint32_t mark_failed(uint32_t failed, int band, int index) const {
    const int slot = Shape::kHalfSize ? band * 2 + first_ / 16 % 2 : band;
    job_.masks[(int64_t{index} * Shape::kSlots + slot) * kConsumers + t_] = static_cast<uint16_t>(failed);
    return 1u << slot;
  }

  // Whether most of the warp's elements are uncertain, so that all of these bands' are computed again; not where a NaN
  // of the operands decides some.
  __device__ __forceinline__ bool gives_up(const Certainty& sure, uint32_t bands) const {
    int own = 0;
#pragma unroll
    for (int i = 0; i < Shape::kSums / 32; ++i) own += __popc(sure.uncertain(i, bands));
    const int all = rows_left_ * (min(first_ + share_, cols_left_) - first_);
    return !job_.batch_invariant && 2 * __reduce_add_sync(~0u, own) > all &&
           all_of_words([](uint32_t word) { return !is_nan_row(word); });
  }

  __device__ __forceinline__ bool store(int r, int col, float x) const {
    return store_element(job_.p, c_ + r * job_.p.c.row + col * job_.p.c.col, d_ + r * job_.p.d.row + col * job_.p.d.col,
                         x);
  }

  using Base::bands_;
  using Base::c_;
  using Base::cols_;
  using Base::cols_left_;
  using Base::d_;
  using Base::first_;
  using Base::inside;
  using Base::job_;
  using Base::rows_;
  using Base::rows_left_;
  using Base::rows_of;
  using Base::share_;
  using Base::store_direct;
  using Base::store_down;
  using Base::store_quads;
  using Base::t_;
  using Base::tile_;
  using Base::words_;
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
