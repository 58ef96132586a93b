// The workspace: its size limit, and the layout of consecutive buffers in it. Pure host code.
#pragma once
#include <atomic>

#include "environment.h"
#include "problem.h"

namespace sgemm {

// Workspace limit, MiB. The environment is read once, because another thread may change it while a product runs.
inline std::atomic<int64_t>& workspace_mib() {
  static std::atomic<int64_t> mib{whole_number_from_environment("TORCH_SGEMM_WORKSPACE", 4096, 1, int64_t{1} << 40,
                                                                "a whole number of MiB, 1 to 2^40")};
  return mib;
}

inline size_t workspace_limit() {  // in bytes
  return static_cast<size_t>(workspace_mib().load(std::memory_order_relaxed)) << 20;
}

struct Buffers {
  static constexpr int64_t kAlignment = 1024;  // more than any access asks for
  size_t total = 0;

  // Reserves `bytes` and returns the offset of the new buffer.
  size_t take(int64_t bytes) {
    const size_t at = total;
    total += static_cast<size_t>(ceil_div(bytes, kAlignment) * kAlignment);
    return at;
  }
};

}  // namespace sgemm
