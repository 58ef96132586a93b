// A stream that neither waits for others nor takes part in a stream capture.
#pragma once
#include "launch.h"

namespace sgemm {

// While this object lives, the thread's calls don't become part of a stream capture in progress, in this thread or in
// another.
class PrivateStream {
 public:
  PrivateStream() {
    cuda_backend::check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
    const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status != cudaSuccess) cudaThreadExchangeStreamCaptureMode(&mode_);
    cuda_backend::check(status, "cudaStreamCreate");
  }
  ~PrivateStream() {
    cudaStreamDestroy(stream);
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  PrivateStream(const PrivateStream&) = delete;

  cudaStream_t stream;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's previous mode, while this object lives
};

}  // namespace sgemm
