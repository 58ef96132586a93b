// Launches with clusters and programmatic dependent launch, for kernels without a CPU build.
#pragma once
#include <atomic>

#include "launch.h"

namespace sgemm {

using cuda_backend::check, cuda_backend::launch, cuda_backend::with_constant;

// Raises a kernel's limit on dynamic shared memory, once per device.
template <auto KERNEL>
void allow_shared_bytes(int bytes) {
  static std::atomic<uint64_t> prepared{0};
  int device;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (prepared.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  prepared.fetch_or(bit, std::memory_order_relaxed);
}

// Launches with programmatic dependent launch and `bytes` of shared memory. `most`: the maximum over all launches of
// the kernel.
template <auto KERNEL, class... Params>
void launch_with_memory(int64_t blocks, int threads, int bytes, int most, int cluster, Stream stream,
                        const Params&... params) {
  allow_shared_bytes<KERNEL>(most);
  launch(KERNEL, blocks, threads, bytes, cluster, true, stream, params...);
}

}  // namespace sgemm
