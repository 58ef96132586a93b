// StoreMode: how the rows of a tile are written to D. The host chooses it once per launch, from D's strides and
// alignment, and C's if C is read.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

enum class StoreMode : uint8_t {
  kCutQuads,  // quads everywhere: rows begin within a memory sector, which pairs would write in two parts
  kQuads,     // pairs from the accumulators, quads from shared memory
  kPairs,     // pairs from the accumulators
  kColMajor,  // D's columns are contiguous, and its rows are not
  kSingles,   // single elements, from shared memory
};

SGEMM_HOST_DEVICE constexpr bool stores_quads(StoreMode mode) { return mode <= StoreMode::kQuads; }
SGEMM_HOST_DEVICE constexpr bool stores_pairs(StoreMode mode) { return mode <= StoreMode::kPairs; }

StoreMode store_mode(const Problem& p);

}  // namespace sgemm
