// StoreMode: how the rows of a tile are written to D. The host chooses it once per launch, from D's strides and
// alignment, and C's if C is read.
#pragma once
#include "../../problem/views.h"

namespace sgemm::split {

enum class StoreMode : uint8_t {
  kCutQuads,  // quads everywhere: rows begin within a memory sector, which pairs would write in two parts
  kQuads,     // pairs from the accumulators, quads from shared memory
  kPairs,     // pairs from the accumulators
  kColMajor,  // D's columns are contiguous, and its rows are not
  kSingles,   // single elements, from shared memory
};

SGEMM_HOST_DEVICE constexpr bool stores_quads(StoreMode mode) { return mode <= StoreMode::kQuads; }
SGEMM_HOST_DEVICE constexpr bool stores_pairs(StoreMode mode) { return mode <= StoreMode::kPairs; }

inline StoreMode store_mode(const Problem& p) {
  if (ends_in_groups<4>(p)) return has_aligned_rows<kSectorFloats>(p.d) ? StoreMode::kQuads : StoreMode::kCutQuads;
  if (ends_in_groups<2>(p)) return StoreMode::kPairs;
  return p.d.row == 1 && p.d.col != 1 ? StoreMode::kColMajor : StoreMode::kSingles;
}

}  // namespace sgemm::split
