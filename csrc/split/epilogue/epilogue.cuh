// The epilogue: tests a tile's sums with the guard, and writes them to D.
#pragma once
#include "../guard/second_look.cuh"
#include "warp_rows.cuh"

namespace sgemm::split {

// Stores D = f(x + beta C), and returns true. Returns false, and stores nothing, if C is the sum of earlier pieces of k
// and the result may differ from the sum in order of k.
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

// The epilogue of a tile for one warp, which has 16 rows.
//
// Most tiles are plain: their sums are scaled and stored from the accumulators in as few instructions as possible. The
// tensor cores wait for the epilogue, and a kernel of one tile per block waits for each of its instructions. If rows
// have thresholds, the accumulators are compared with them first. Bands of columns go through shared memory only if an
// element fails, if scales aren't plain, or if D is more than a scaled sum. Short loops then let lanes store
// neighbours.
template <class Shape>
class TileEpilogue : public WarpRows<Shape> {
 public:
  using Base = WarpRows<Shape>;
  using typename Base::Sums;
  using Certainty = Certain<Shape::kSums>;
  using Base::Base;

  // Copies the scales and thresholds to memory, where the redo reads them.
  __device__ __forceinline__ void leave_words(uint32_t* to) const {
    for (int i = t_ % 32; i < 2 * kTile; i += 32) to[i] = words_[i / kTile][i % kTile];
  }

  // Returns true if the warp's rows and columns have plain scales and no thresholds.
  __device__ __forceinline__ bool is_plain() const {
    return all_of_words([](uint32_t word) { return split::is_plain(word); });
  }

  // Returns true if store_plain() applies: the warp's sums need no test, are only scaled, and all of them are inside.
  // DOWN: D's columns may be contiguous.
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

  // Certifies elements. Precondition: |x| * factor <= (|A||B|)_ij, scaled.
  __device__ __forceinline__ Certainty certain(const Sums& x, float factor) const {
    return certain_elements(
        x, factor, rows_, cols_, rows_left_, [&](int col) { return inside(col); }, t_ % 32);
  }

  // Stores the certified elements. Elements that the guard refuses are not stored, but get a bit in a mask. Returns the
  // bits of the slots that have masks. `known`: elements already certified from other sums. RECORDED: the convert
  // kernel has split both operands; rarely needed code is then in a separate function.
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

  // Stores a staged band. `carefully`: tests and scales it element by element, because some elements have failed or
  // some scales aren't plain. Returns the slot's bit if the band has refused elements.
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
  // Returns true if the predicate holds for the scales and thresholds of all of the warp's rows and columns.
  template <class Holds>
  __device__ __forceinline__ bool all_of_words(const Holds& holds) const {
    const uint4 words = *reinterpret_cast<const uint4*>(&cols_[t_ % (Shape::kCols / 4) * 4]);
    return __all_sync(~0u, holds(rows_[t_ % 16]) & holds(words.x) & holds(words.y) & holds(words.z) & holds(words.w));
  }

  // Stores a staged band, with C and f, if D's columns are contiguous: half of the lanes have a column.
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

  // Stores a staged band by quads: a lane has a quad in row lane / 8, and in every fourth row from there on.
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

  // Stores the elements of a staged band that haven't failed, for any scales. Each lane has a column.
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
    // An element with plain scales is multiplied as in a plain tile, so that its bits don't depend on its neighbours'
    // scales. The loops are short, because their instructions are not in the caches.
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

  // Writes the mask of a lane's column: `failed` has a bit for each row. Returns the slot's bit.
  __device__ __forceinline__ uint32_t mark_failed(uint32_t failed, int band, int index) const {
    const int slot = Shape::kHalfSize ? band * 2 + first_ / 16 % 2 : band;
    job_.masks[(int64_t{index} * Shape::kSlots + slot) * kConsumers + t_] = static_cast<uint16_t>(failed);
    return 1u << slot;
  }

  // Returns true if more than half of the warp's elements are uncertified: all elements of `bands` are then recomputed.
  // Returns false if a row or column holds NaN, which decides some elements.
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

// TileEpilogue::store_band() as a separate function. Rare code between the instructions of ordinary tiles makes a short
// kernel wait longer for its instructions. Kernels with few free registers, such as the on-the-fly kernel, inline it,
// because a call costs them more.
template <class Shape>
static __device__ __noinline__ uint32_t store_staged(const Job& job, TileIndex tile, const uint32_t (&words)[2][kTile],
                                                     int first, int cols, int t, const float* staged, int band,
                                                     bool carefully, int index) {
  return TileEpilogue<Shape>(job, tile, words, first, cols, t).store_band(staged, band, carefully, index);
}

}  // namespace sgemm::split
