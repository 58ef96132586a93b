// The sum of slices of k.
#pragma once
#include "activation.h"
#include "dependent_launch.cuh"
#include "launch_cluster.cuh"

namespace sgemm {

constexpr int kReadAtOnce = 16;  // slices: one after the other, each would wait for memory

// D = f(alpha * (the slices' sum, first to last) + beta * C).
static __global__ void __launch_bounds__(256) sum_slices(const float* partials, int64_t slices, Problem p) {
  wait_for_predecessor();
  const int64_t count = p.m * p.n;
  for (int64_t x = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; x < count; x += int64_t{gridDim.x} * blockDim.x) {
    float sum = 0;
    const float* part = partials + x;
    int64_t left = slices;
    for (; left >= kReadAtOnce; left -= kReadAtOnce, part += kReadAtOnce * count) {
      float parts[kReadAtOnce];
#pragma unroll
      for (int i = 0; i < kReadAtOnce; ++i) parts[i] = part[i * count];
#pragma unroll
      for (int i = 0; i < kReadAtOnce; ++i) sum += parts[i];
    }
    for (; left > 0; --left, part += count) sum += *part;
    const int64_t i = x / p.n, j = x % p.n;
    float value = p.alpha * sum;
    if (p.beta != 0) value += p.beta * *p.c.at(i, j);
    *p.d.at(i, j) = activated(p.activation, value);
  }
}

// The product of which slices of k are computed: plain sums, one behind the other.
inline Problem product_of_slices(Problem p, float* partials) {
  p.d = {partials, p.m, p.n, p.n, 1, p.m * p.n};
  p.alpha = 1;
  p.beta = 0;
  p.activation = Activation::kNone;  // of the sum
  return p;
}

inline void launch_sum(const float* partials, int64_t slices, const Problem& p, const Context& context) {
  const int64_t blocks = ceil_div(p.m * p.n, 256), most = 8 * context.device->sms;
  launch(sum_slices, blocks < most ? blocks : most, 256, 0, 1, true, context.stream, partials, slices, p);
}

}  // namespace sgemm
