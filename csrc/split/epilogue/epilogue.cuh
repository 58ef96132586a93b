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
static __device__ __noinline__ uint32_t store_staged(const Job& job, TileIndex tile, const TileScales& row_scales,
                                                     int first, int cols, int t, const float* staged, int band,
                                                     bool tests, int index);

// The epilogue of a tile for one warp, which has 16 rows.
//
// Most tiles are plain: their sums are scaled and stored from the accumulators in as few instructions as possible. The
// tensor cores wait for the epilogue, and a kernel of one tile per block waits for each of its instructions. If rows
// have thresholds, the accumulators are compared with them first. Bands of columns go through shared memory only if an
// element fails, if scales aren't plain, or if D is more than a scaled sum. Short loops then let lanes store
// neighbours.
template <class Shape>
class TileEpilogue : public WarpRows {
 public:
  using Sums = float[Shape::kSums];
  using CertifiedSums = Certified<Shape::kSums>;

  __device__ __forceinline__ TileEpilogue(const Job& job, const TileIndex& tile, const TileScales& row_scales,
                                          int first, int cols, int t)
      : WarpRows(Shape(), job, tile, row_scales, first, cols, t) {}

  // Copies the scales and thresholds to memory, where the redo reads them.
  __device__ __forceinline__ void keep_scales(uint32_t* to) const {
    for (int i = t_ % 32; i < 2 * kTile; i += 32) to[i] = row_scales_[i / kTile][i % kTile];
  }

  // Returns true if the warp's rows and columns have plain scales and no thresholds.
  __device__ __forceinline__ bool is_plain() const {
    return all_scales([](RowScale row_scale) { return split::is_plain(row_scale); });
  }

  // Returns true if store_plain() applies: the warp's sums need no test, are only scaled, and all of them are inside.
  // COL_MAJOR_D: D's columns may be contiguous.
  template <bool COL_MAJOR_D>
  __device__ __forceinline__ bool stores_plain() const {
    const bool whole = rows_left_ == 16 && (first_ | cols_left_) % 32 == 0;
    return is_plain() & job_.scaled_only &
           (job_.stores == StoreMode::kColMajor ? COL_MAJOR_D : stores_pairs(job_.stores) & whole);
  }
  template <bool COL_MAJOR_D>
  __device__ __forceinline__ void store_plain(const Sums& sum) const {
    if (COL_MAJOR_D && __builtin_expect(job_.stores == StoreMode::kColMajor, false))
      store_col_major(sum, bands_);
    else if (__builtin_expect(job_.stores == StoreMode::kCutQuads, false))
      store_quads(sum);
    else
      store_pairs<true>(sum, bands_);
  }

  // Certifies elements. Precondition: |x| * factor <= (|A||B|)_ij, scaled.
  __device__ __forceinline__ CertifiedSums certified(const Sums& x, float factor) const {
    return certified_elements(
        x, factor, rows_, cols_, rows_left_, [&](int col) { return inside(col); }, t_ % 32);
  }

  // Stores the certified elements. Elements that the guard refuses are not stored, but get a bit in a mask. Returns the
  // bits of the bands that have masks. `early`: elements already certified from other sums.
  __device__ __forceinline__ uint32_t store(Sums& sum, const CertifiedSums& early, float* staging, int index) const {
    staging += t_ / 32 * kStagedFloats;
    uint32_t tested = 0, all_refused = 0;
    if (!is_plain()) {
      if (!all_scales([](RowScale row_scale) { return has_plain_scale(row_scale); })) tested = bands_;
      CertifiedSums sure = certified(sum, 1) | early;
      if (bands_ & sure.uncertified_bands()) {
        sure.add_outside(
            rows_left_, [&](int col) { return inside(col); }, t_ % 32);
        const uint32_t doubtful = bands_ & sure.uncertified_bands();
        if (refuses_all(sure, doubtful)) {
          all_refused = doubtful;
        } else {
          uint32_t* const list = reinterpret_cast<uint32_t*>(staging);
          look_again<Shape>(job_, tile_, row_scales_, sum, doubtful, t_, list, sure);
          tested |= doubtful & sure.uncertified_bands();
        }
      }
    }
    const uint32_t staged = (job_.scaled_only ? tested : bands_) & ~all_refused;
    const uint32_t direct = bands_ & ~staged & ~all_refused;
    if (direct != 0) store_direct(sum, direct, staging);
    uint32_t flags = 0;
#pragma unroll 1
    for (uint32_t bands = all_refused; bands; bands &= bands - 1) {
      const int band = __ffs(bands) - 1;
      flags |= flag_refused((1u << rows_of(band * 32 + t_ % 32)) - 1, band, index);
    }
#pragma unroll 1
    for (uint32_t bands = staged; bands; bands &= bands - 1) {
      const int band = __ffs(bands) - 1;
      const bool tests = tested >> band & 1;
      stage_any_band(sum, band, staging, hopper::opaque(t_ % 32));
      __syncwarp();
      flags |= store_staged<Shape>(job_, tile_, row_scales_, first_, share_, t_, staging, band, tests, index);
      __syncwarp();
    }
    return flags;
  }

  // Stores a staged band. `tests`: tests and scales it element by element, because some elements have failed or
  // some scales aren't plain. Returns the band's bit if the band has refused elements.
  __device__ __forceinline__ uint32_t store_band(const float* staged, int band, bool tests, int index) const {
    const int lane = t_ % 32;
    if (tests || !job_.plain_alpha || job_.p.k_before > 0 ||
        !(stores_quads(job_.stores) || job_.stores == StoreMode::kColMajor))
      return store_certified(staged, band, lane, index);
    if (stores_quads(job_.stores))
      store_band_quads(staged, band, lane);
    else
      store_band_col_major(staged, band, lane);
    return 0;
  }

 private:
  // Returns true if the predicate holds for the scales and thresholds of all of the warp's rows and columns.
  template <class Holds>
  __device__ __forceinline__ bool all_scales(const Holds& holds) const {
    const uint4 row_scales = *reinterpret_cast<const uint4*>(&cols_[t_ % (Shape::kCols / 4) * 4]);
    return __all_sync(~0u, holds(rows_[t_ % 16]) & holds(row_scales.x) & holds(row_scales.y) & holds(row_scales.z) &
                               holds(row_scales.w));
  }

  // Stores a staged band, with C and f, if D's columns are contiguous: half of the lanes have a column.
  __device__ __forceinline__ void store_band_col_major(const float* staged, int band, int lane) const {
    const int r = lane % 16;
    const float scale = job_.p.alpha * factor_of(rows_[r]);
#pragma unroll 1
    for (int col = band * 32 + lane / 16; col < band * 32 + 32; col += 2) {
      if (r >= rows_left_ || !inside(col)) continue;
      const float x = staged[place_in_band(r, col % 32 / 4) + col % 4] * (scale * factor_of(cols_[col]));
      d_[r + col * job_.p.d.col] = finished(job_.p, x, c_ + r * job_.p.c.row + col * job_.p.c.col);
    }
  }

  // Stores a staged band by quads: a lane has a quad in row lane / 8, and in every fourth row from there on.
  __device__ __forceinline__ void store_band_quads(const float* staged, int band, int lane) const {
    const int q = lane % 8, col = band * 32 + q * 4;
    if (!inside(col)) return;
    const uint4 row_scales = *reinterpret_cast<const uint4*>(&cols_[col]);
#pragma unroll 1
    for (int r = lane / 8; r < rows_left_; r += 4) {
      const float4 sums = *reinterpret_cast<const float4*>(staged + place_in_band(r, q));
      const float scale = job_.p.alpha * factor_of(rows_[r]), beta = job_.p.beta;
      float x[4] = {sums.x * (scale * factor_of(row_scales.x)), sums.y * (scale * factor_of(row_scales.y)),
                    sums.z * (scale * factor_of(row_scales.z)), sums.w * (scale * factor_of(row_scales.w))};
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
      if (isnan(x) && (__float_as_uint(x) == kRefused || !is_nan_of_operands(x, rows_[r], right))) failed |= 1u << r;
    }
    // An element with plain scales is multiplied as in a plain tile, so that its bits don't depend on its neighbours'
    // scales. The loops are short, because their instructions are not in the caches.
    const bool plain = job_.plain_alpha && has_plain_scale(right);
    const auto plainly_scaled = [&](int r) { return sum(r) * (job_.p.alpha * factor_of(rows_[r]) * factor_of(right)); };
    const auto is_plain_or_redone = [](RowScale row_scale) {
      return has_plain_scale(row_scale) || is_inf_row(row_scale);
    };
    if (job_.scaled_only && __all_sync(~0u, is_plain_or_redone(right) && is_plain_or_redone(rows_[lane % 16]))) {
#pragma unroll 4
      for (int r = 0; r < rows; ++r)
        if (!(failed >> r & 1))
          d_[r * job_.p.d.row + col * job_.p.d.col] =
              add_c(job_.p, plainly_scaled(r), c_ + r * job_.p.c.row + col * job_.p.c.col);
      return __any_sync(~0u, failed) ? flag_refused(failed, band, index) : 0;
    }
    int of_alpha;
    const float alpha = frexpf(job_.p.alpha, &of_alpha);
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      float x = sum(r);
      if (plain && has_plain_scale(rows_[r])) {
        x = plainly_scaled(r);
      } else {
        const int exponent = exponent_of(rows_[r]) + exponent_of(right);
        if (isinf(unscaled(x, exponent)) && !surely_overflows(x, exponent)) failed |= 1u << r;
        x = unscaled(alpha * x, exponent + of_alpha);
      }
      if (!(failed >> r & 1) && !store(r, col, x)) failed |= 1u << r;
    }
    return __any_sync(~0u, failed) ? flag_refused(failed, band, index) : 0;
  }

  // Writes the mask of a lane's column: `failed` has a bit for each row. Returns the band's bit.
  __device__ __forceinline__ uint32_t flag_refused(uint32_t failed, int band, int index) const {
    job_.masks[(int64_t{index} * Shape::kBands + band) * kConsumers + t_] = static_cast<uint16_t>(failed);
    return 1u << band;
  }

  // Returns true if more than half of the warp's elements are uncertified: all elements of `bands` are then recomputed.
  // Returns false if a row or column holds NaN, which decides some elements.
  __device__ __forceinline__ bool refuses_all(const CertifiedSums& sure, uint32_t bands) const {
    int own = 0;
#pragma unroll
    for (int i = 0; i < sure.kCount; ++i) own += __popc(sure.uncertified(i, bands));
    const int all = rows_left_ * (min(first_ + share_, cols_left_) - first_);
    return !job_.batch_invariant && 2 * __reduce_add_sync(~0u, own) > all &&
           all_scales([](RowScale row_scale) { return !is_nan_row(row_scale); });
  }

  __device__ __forceinline__ bool store(int r, int col, float x) const {
    return store_element(job_.p, c_ + r * job_.p.c.row + col * job_.p.c.col, d_ + r * job_.p.d.row + col * job_.p.d.col,
                         x);
  }
};

// TileEpilogue::store_band() as a separate function. Rare code between the instructions of ordinary tiles makes a short
// kernel wait longer for its instructions.
template <class Shape>
static __device__ __noinline__ uint32_t store_staged(const Job& job, TileIndex tile, const TileScales& row_scales,
                                                     int first, int cols, int t, const float* staged, int band,
                                                     bool tests, int index) {
  return TileEpilogue<Shape>(job, tile, row_scales, first, cols, t).store_band(staged, band, tests, index);
}

}  // namespace sgemm::split
