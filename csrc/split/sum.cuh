// The sum of slices of k.
#pragma once
#include "../common/hopper.cuh"
#include "../gemm.h"

namespace sgemm::split {

// D = alpha * (the slices' sum, first to last) + beta * C.
__global__ void __launch_bounds__(256) split_sum(const float* partials, int64_t slices, Problem p) {
  hopper::wait_for_predecessor();
  const int64_t count = p.m * p.n;
  for (int64_t x = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; x < count; x += int64_t{gridDim.x} * blockDim.x) {
    float sum = 0;
    for (int64_t s = 0; s < slices; ++s) sum += partials[s * count + x];
    const int64_t i = x / p.n, j = x % p.n;
    float value = p.alpha * sum;
    if (p.beta != 0) value += p.beta * *p.c.at(i, j);
    *p.d.at(i, j) = value;
  }
}

}  // namespace sgemm::split
