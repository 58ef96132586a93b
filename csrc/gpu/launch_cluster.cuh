// Launches with clusters and programmatic dependent launch, for kernels that are built for GPUs alone.
#pragma once
#include <atomic>

#include "launch.h"

namespace sgemm {

using cuda_backend::check, cuda_backend::launch;

// Raises a kernel's limit of shared memory, once per device. `prepared` is the kernel's own.
inline void allow_shared_bytes(const void* kernel, int bytes, std::atomic<uint64_t>& prepared) {
  int device;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (prepared.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  prepared.fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace sgemm
