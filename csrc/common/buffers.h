// Buffers that lie one behind the other in a workspace. Pure host code.
#pragma once
#include "../gemm.h"

namespace sgemm {

struct Buffers {
  static constexpr int64_t kAlignment = 1024;  // more than any access asks for
  size_t total = 0;

  // Where the next one begins.
  size_t take(int64_t bytes) {
    const size_t at = total;
    total += static_cast<size_t>(ceil_div(bytes, kAlignment) * kAlignment);
    return at;
  }
};

}  // namespace sgemm
