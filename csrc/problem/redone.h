// Counts of what the guard of the family split has computed again.
#pragma once
#include <cstdint>

namespace sgemm {

// Recomputed single elements, and recomputed whole tiles.
struct Redone {
  uint64_t elements, tiles;
};

}  // namespace sgemm
