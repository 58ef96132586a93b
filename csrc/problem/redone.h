// How much the guard of the family split has had computed again.
#pragma once
#include <cstdint>

namespace sgemm {

// Elements, and tiles as a whole.
struct Redone {
  uint64_t elements, tiles;
};

}  // namespace sgemm
