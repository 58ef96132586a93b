// Code that the recomputation of outputs and that of gradients share.
#pragma once
#include <cuda_runtime.h>

#include "attention.h"

namespace sgemm::attention {

constexpr int kColumnsOfLane = kMostDepth / 32;  // of a row that a warp computes

// Returns the product of row i of x and row j of y, whose length is a multiple of 4, in four chains of multiply-adds.
__device__ __forceinline__ float dot(const ConstMatrix& x, int i, const ConstMatrix& y, int j) {
  float sums[4] = {};
#pragma unroll 1
  for (int d = 0; d < x.cols; d += 4)
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[c] = fmaf(*x.at(i, d + c), *y.at(j, d + c), sums[c]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace sgemm::attention
