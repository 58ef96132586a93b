// How far a split product may be off, proved term by term in docs/split.md. In units of 2^-24 (|A||B|)_ij.
#pragma once
#include <algorithm>

#include "plan/plan.h"

namespace sgemm::split {

// A tensor core aligns 16 products and the sum so far to the largest of these 17, and cuts off what is below 2^-25 of
// it, half a unit each; then it cuts the new sum to 24 bits, which is up to two units.
inline constexpr double kOfStep = 17 * 0.5 + 2;

// The terms that all schemes share. The products of one window of k start at 0 in the tensor cores. Windows are added
// up by ordinary additions, one rounding each, in whatever order: slices, clusters' and tiles' parts are whole windows.
// Then come the corrections, alpha, and C.
inline double sum_bound(int64_t k, int window) {
  const auto windows = [k](int of) { return static_cast<double>((k + of - 1) / of); };
  return kOfStep * std::min<double>(windows(16), window / 16) + windows(kStep) + 3;
}

// What is computed again (chains.cuh): a product meets at most 32 roundings in its chain, and one for each chain; then
// come alpha and C. No chain of FMAs has a larger error than its length.
inline double chains_bound(int64_t k) {
  return static_cast<double>(std::min<int64_t>(k, kChain) + (k - 1) / kChain) + 2;
}

template <class F>
struct Bound;

template <>
struct Bound<Fp16x3> {
  static constexpr double kWriting = 4;  // 2^-23 of either element
  static constexpr double kLeftOut = 4;  // lo lo: 2^-12 of either, beside values just above a power of two
  // Of what is certified: 3 for the bits that small elements lose, and 17 / 4 for the 17 terms that one of them cuts
  // off: it counts as 2^-14 in the alignment, and the element that it meets as up to 2^15.
  static constexpr double kGuard = 3 + 17.0 / 4;
  // The corrections are at most 2 |A||B| / 2^11, and cut off twice in 16 of k.
  static constexpr double kCorrections = 2 * kOfStep * 2 / 2048 / 16;  // for each of k
  static double of(int64_t k, int window) {
    const double terms = kWriting + kLeftOut + kGuard + kCorrections * static_cast<double>(k);
    return std::max(terms + sum_bound(k, window), chains_bound(k));
  }
};

template <>
struct Bound<Bf16x6> {
  static constexpr double kLeftOut = 1;  // mid lo, lo mid, lo lo: 2^-25 twice, and less
  static constexpr double kGuard = 2;
  // At most 1.02 |A||B| / 2^7, cut off five times in 16 of k.
  static constexpr double kCorrections = 5 * kOfStep * 1.02 / 128 / 16;  // for each of k
  static double of(int64_t k, int window) {
    const double terms = kLeftOut + kGuard + kCorrections * static_cast<double>(k);
    return std::max(terms + sum_bound(k, window), chains_bound(k));
  }
};

}  // namespace sgemm::split
