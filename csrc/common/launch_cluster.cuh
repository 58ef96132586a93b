// Launches with a cluster, and with programmatic dependence.
#pragma once
#include <atomic>

#include "launch.h"

namespace sgemm {

using cuda_backend::check;

// `overlapping`: the kernel may start before the one in front has ended; it waits for it by itself.
template <class... Params>
void launch(void (*kernel)(Params...), int64_t blocks, int threads, int shared_bytes, int cluster, bool overlapping,
            Stream stream, const Params&... params) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
  attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  if (overlapping) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, params...), "launch");
}

// Raises a kernel's limit of shared memory, once a device. `prepared` is the kernel's own.
inline void allow_shared_bytes(const void* kernel, int bytes, std::atomic<uint64_t>& prepared) {
  int device;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (prepared.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  prepared.fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace sgemm
