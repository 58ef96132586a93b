#include "rows.h"

namespace sgemm::split {

size_t plane_bytes(int64_t k, int64_t n) { return packed_layout(SplitProduct<Fp16x3>::shape(0), k, n).total; }

}  // namespace sgemm::split
