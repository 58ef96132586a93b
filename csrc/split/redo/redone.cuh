// Counters of recomputed elements and tiles. Each file that includes this counts its own kernels.
#pragma once
#include "../../gpu/launch.h"
#include "../rows.h"

namespace sgemm::split {

// Numbers of recomputed elements, and of tiles that were recomputed by whole groups of columns, on this device since
// the library was loaded.
static __device__ unsigned long long redone_elements, redone_tiles;

// Adds `count` to a counter, unless it is 0, without a branch. After a branch the lanes of a warp might not reconverge,
// which the tensor-core instructions need.
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

// A private stream. While this object lives, the thread's calls don't become part of a stream capture in progress, in
// this thread or in another.
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
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's previous mode, while this object lives
};

// Returns the counters of the including file's kernels, without waiting for work in progress.
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
