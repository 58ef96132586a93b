// Selects the build of a kernel's source: nvcc for GPUs, or host C++ on the emulator.
#pragma once
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define SGEMM_BACKEND cuda_backend
#else
#include "../emulator/cuda_on_cpu.h"
#define SGEMM_BACKEND emulated_backend
#endif

namespace sgemm::SGEMM_BACKEND {

// The lowest architecture that this build's kernels run on: 80 for sm_80.
#if defined(__CUDACC__) && defined(__CUDA_ARCH_LIST__)
constexpr int kMinArch = [] {
  int lowest = 0;
  for (int arch : {__CUDA_ARCH_LIST__}) lowest = lowest == 0 || arch < lowest ? arch : lowest;
  return lowest / 10;
}();
#else
constexpr int kMinArch = 0;
#endif

}  // namespace sgemm::SGEMM_BACKEND
