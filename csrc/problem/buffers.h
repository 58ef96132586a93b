// The workspace: how large it may be, and buffers that lie in it one behind the other. Pure host code.
#pragma once
#include <algorithm>
#include <cstdlib>

#include "problem.h"

namespace sgemm {

// TORCH_SGEMM_WORKSPACE, in MiB, as bytes.
inline size_t workspace_limit() {
  constexpr size_t kDefaultMib = 4096;
  const char* text = std::getenv("TORCH_SGEMM_WORKSPACE");
  const long long mib = text ? std::min(std::atoll(text), 1LL << 40) : 0;
  return (mib > 0 ? static_cast<size_t>(mib) : kDefaultMib) << 20;
}

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
