// The error bound of a split product, in units of 2^-24 (|A||B|)_ij. docs/split.md proves each term.
#pragma once
#include <algorithm>

#include "plan/sizes.h"

namespace sgemm::split {

// The error of one 16-deep tensor-core step. The core aligns 16 products and the accumulator to the largest of these 17
// terms, and truncates each term below 2^-25 of the largest: half a unit each. Then it truncates the new sum to 24
// bits: up to two units.
inline constexpr double kOfStep = 17 * 0.5 + 2;

// The terms that all schemes share. In the tensor cores, the sum of each window of k starts at 0, or at the window's
// corrections. Ordinary additions add the windows up, one rounding each, in any order: slices, segments, and the parts
// of clusters and of tiles, are whole windows. The corrections, alpha and C add one rounding each: each part adds its
// own corrections, but its rounding is relative to the part's |A||B|, and these add up to the whole.
inline double sum_bound(int64_t k, int window) {
  const auto windows = [k](int of) { return static_cast<double>((k + of - 1) / of); };
  return kOfStep * std::min<double>(windows(16), window / 16) + windows(kStep) + 3;
}

// The bound of recomputed elements (chains.cuh). A product takes part in at most 32 roundings within its chain, one for
// each chain, one for alpha and one for C. A chain of n FMAs is off by at most n units.
inline double chains_bound(int64_t k) {
  return static_cast<double>(std::min<int64_t>(k, kChain) + (k - 1) / kChain) + 2;
}

template <class F>
struct Bound;

template <>
struct Bound<Fp16x3> {
  static constexpr double kWriting = 4;  // 2^-23 of either element
  static constexpr double kLeftOut = 4;  // lo * lo: each factor is at most 2^-11 of its element's power of two
  // Certified elements: 3 for the bits that small elements lose, and 17 / 4 for the 17 terms that a small element makes
  // the core truncate. The alignment takes a small element as 2^-14, and the element that it multiplies as up to 2^15.
  static constexpr double kGuard = 3 + 17.0 / 4;
  // The corrections are at most 2 |A||B| / 2^11, and are truncated twice in each 16 of k.
  static constexpr double kCorrections = 2 * kOfStep * 2 / 2048 / 16;  // units per element of k
  static double of(int64_t k, int window) {
    const double terms = kWriting + kLeftOut + kGuard + kCorrections * static_cast<double>(k);
    return std::max(terms + sum_bound(k, window), chains_bound(k));
  }
};

template <>
struct Bound<Bf16x6> {
  static constexpr double kLeftOut = 1;  // mid * lo and lo * mid are 2^-25 each; lo * lo is less
  static constexpr double kGuard = 2;
  // The corrections are at most 1.02 |A||B| / 2^7, and are truncated five times in each 16 of k.
  static constexpr double kCorrections = 5 * kOfStep * 1.02 / 128 / 16;  // units per element of k
  static double of(int64_t k, int window) {
    const double terms = kLeftOut + kGuard + kCorrections * static_cast<double>(k);
    return std::max(terms + sum_bound(k, window), chains_bound(k));
  }
};

}  // namespace sgemm::split
