// Error bounds of the rows' results.
#pragma once
#include <algorithm>
#include <cstdint>

#include "../problem/views.h"

namespace sgemm::ieee {

// Error bound for a sum of k products, in units of 2^-24 times the sum of the products' absolute values. Each product
// meets at most `roundings` roundings, and each multiplies it by 1 + e with |e| <= 2^-24. In any order the bound is at
// most k (proof: docs/ieee.md).
inline double error_bound(int64_t k, int64_t roundings) {
  const double n = static_cast<double>(roundings), most = static_cast<double>(k);
  return n < 0x1p23 ? std::min(most, n / (1 - n * 0x1p-24)) : most;
}

// Number of roundings of an element in the sum of `slices` slices.
inline int64_t sum_roundings(int64_t slices) {
  const int64_t groups = sum_groups(slices);
  return ceil_div(slices, groups) - 1 + groups - 1;
}

}  // namespace sgemm::ieee
