// How much the guard has redone: each file's kernels count for themselves.
#pragma once
#include "../../gpu/launch.h"
#include "../rows.h"

namespace sgemm::split {

// Elements that were computed again, and tiles that were computed whole for it, on this device since the library was
// loaded.
static __device__ unsigned long long redone_elements, redone_tiles;

// Adds what isn't 0 without a branch, behind which the lanes of a warp would not be sure to meet again: the tensor
// cores' instructions want them together.
__device__ __forceinline__ void count_redone(unsigned long long& counter, uint32_t count) {
  asm volatile(
      "{\n"
      ".reg .pred some;\n"
      "setp.ne.u32 some, %1, 0;\n"
      "@some red.global.add.u64 [%0], %2;\n"
      "}" ::"l"(&counter),
      "r"(count), "l"(static_cast<unsigned long long>(count))
      : "memory");
}

// A stream of its own, and calls that no capture under way, in this thread or another, takes for part of it.
class Aside {
 public:
  Aside() {
    cuda_backend::check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
    const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status != cudaSuccess) cudaThreadExchangeStreamCaptureMode(&mode_);
    cuda_backend::check(status, "cudaStreamCreate");
  }
  ~Aside() {
    cudaStreamDestroy(stream);
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  Aside(const Aside&) = delete;

  cudaStream_t stream;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the other one's, while this lives
};

// By the including file's kernels, without waiting for work under way.
static Redone redone_here() {
  using cuda_backend::check;
  const Aside aside;
  unsigned long long values[2];
  check(cudaMemcpyFromSymbolAsync(&values[0], redone_elements, 8, 0, cudaMemcpyDeviceToHost, aside.stream), "copy");
  check(cudaMemcpyFromSymbolAsync(&values[1], redone_tiles, 8, 0, cudaMemcpyDeviceToHost, aside.stream), "copy");
  check(cudaStreamSynchronize(aside.stream), "cudaStreamSynchronize");
  return {values[0], values[1]};
}

}  // namespace sgemm::split
