// How much the guard has redone: each file's kernels count for themselves.
#pragma once
#include "../common/launch.h"
#include "split.h"

namespace sgemm::split {

// Elements that were computed again, and tiles that were computed whole for it, on this device since the library was
// loaded.
static __device__ unsigned long long redone_elements, redone_tiles;

// By the including file's kernels, without waiting for work under way.
static Redone redone_here() {
  using cuda_backend::check;
  unsigned long long values[2];
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaMemcpyFromSymbolAsync(&values[0], redone_elements, 8, 0, cudaMemcpyDeviceToHost, stream), "copy");
  check(cudaMemcpyFromSymbolAsync(&values[1], redone_tiles, 8, 0, cudaMemcpyDeviceToHost, stream), "copy");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return {values[0], values[1]};
}

}  // namespace sgemm::split
