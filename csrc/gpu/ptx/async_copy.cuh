// Asynchronous copies from global to shared memory that bypass registers (sm_80 and later), and their commit groups.
// The emulator copies immediately.
#pragma once
#include <cstdint>
#include <cstring>

namespace sgemm {

#if defined(__CUDACC__)

// Copies BYTES bytes (4 or 16). Only the first `valid` are read; the rest becomes zero. `shared`: blocks on all SMs
// read the same data at about the same time. Copies of 16 bytes then go through the L1 cache, because requests for a
// line would queue at the L2 cache. Otherwise they bypass L1.
template <int BYTES>
__device__ __forceinline__ void copy_async(float* target, const float* source, int valid, bool shared = false) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(target));
  if constexpr (BYTES == 16)
    asm volatile(
        "{\n"
        ".reg .pred shared;\n"
        "setp.ne.b32 shared, %3, 0;\n"
        "@shared cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;\n"
        "@!shared cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n"
        "}" ::"r"(to),
        "l"(source), "r"(valid), "r"(static_cast<int>(shared))
        : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(source), "r"(valid) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING committed groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#else
template <int BYTES>
void copy_async(float* target, const float* source, int valid, bool = false) {
  std::memset(target, 0, BYTES);
  std::memcpy(target, source, valid);
}

inline void commit_copies() {}

template <int PENDING>
void wait_copies() {}
#endif

}  // namespace sgemm
