#include "store_mode.h"

#include "../problem/views.h"

namespace sgemm {

StoreMode store_mode(const Problem& p) {
  if (ends_in_groups<4>(p)) return has_aligned_rows<kSectorFloats>(p.d) ? StoreMode::kQuads : StoreMode::kCutQuads;
  if (ends_in_groups<2>(p)) return StoreMode::kPairs;
  return p.d.row == 1 && p.d.col != 1 ? StoreMode::kColMajor : StoreMode::kSingles;
}

}  // namespace sgemm
