// Epilogue of a sum: D = f(alpha * sum + beta * C), with the same rounding in all rows. Alpha times the sum is rounded,
// and one FMA adds beta C. C is not read if beta is 0, because C may hold NaN.
#pragma once
#include "activation.h"

namespace sgemm {

// `x` is alpha times the sum.
SGEMM_HOST_DEVICE inline float add_c(const Problem& p, float x, const float* c) {
  return p.beta == 0 ? x : fmaf(p.beta, *c, x);
}

// The same for four neighbours of C that have been read. Precondition: beta != 0.
SGEMM_HOST_DEVICE inline void add_c(float beta, const float (&c)[4], float (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = fmaf(beta, c[i], x[i]);
}
#if defined(__CUDACC__)
__device__ __forceinline__ float2 add_c(float beta, float2 c, float2 x) {
  return {fmaf(beta, c.x, x.x), fmaf(beta, c.y, x.y)};
}
#endif

SGEMM_HOST_DEVICE inline float finished(const Problem& p, float x, const float* c) {
  return activated(p.activation, add_c(p, x, c));
}

}  // namespace sgemm
