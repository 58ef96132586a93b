// The workspace: how large it may be, and buffers that lie in it one behind the other. Pure host code.
#pragma once
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "problem.h"

namespace sgemm {

// What TORCH_SGEMM_WORKSPACE asks for.
inline int64_t workspace_mib_from_environment() {
  constexpr int64_t kDefault = 4096, kMost = int64_t{1} << 40;
  const char* const text = std::getenv("TORCH_SGEMM_WORKSPACE");
  if (!text || !*text) return kDefault;
  char* end = nullptr;
  const long long mib = std::strtoll(text, &end, 10);
  if (*end || mib < 1 || mib > kMost)
    throw std::runtime_error("sgemm: TORCH_SGEMM_WORKSPACE is '" + std::string(text) +
                             "'; accepted: a whole number of MiB, 1 to 2^40");
  return mib;
}

// In MiB. The environment is read once: another thread may change it while a product runs.
inline std::atomic<int64_t>& workspace_mib() {
  static std::atomic<int64_t> mib{workspace_mib_from_environment()};
  return mib;
}

inline size_t workspace_limit() {  // in bytes
  return static_cast<size_t>(workspace_mib().load(std::memory_order_relaxed)) << 20;
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
