// Reads the counters of recomputed elements and tiles.
#pragma once
#include "../../gpu/launch_cluster.cuh"
#include "../../problem/redone.h"
#include "../redo/redone.cuh"

namespace sgemm::split {

// A private stream. While this object lives, the thread's calls don't become part of a stream capture in progress, in
// this thread or in another.
class Aside {
 public:
  Aside() {
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
    const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status != cudaSuccess) cudaThreadExchangeStreamCaptureMode(&mode_);
    check(status, "cudaStreamCreate");
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
  const Aside aside;
  unsigned long long values[2];
  check(cudaMemcpyFromSymbolAsync(&values[0], redone_elements, 8, 0, cudaMemcpyDeviceToHost, aside.stream), "copy");
  check(cudaMemcpyFromSymbolAsync(&values[1], redone_tiles, 8, 0, cudaMemcpyDeviceToHost, aside.stream), "copy");
  check(cudaStreamSynchronize(aside.stream), "cudaStreamSynchronize");
  return {values[0], values[1]};
}

}  // namespace sgemm::split
