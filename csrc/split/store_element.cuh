// An element of D by itself.
#pragma once
#include "../epilogue/activation.h"
#include "../epilogue/epilogue.cuh"
#include "format.cuh"
#include "job.h"

namespace sgemm::split {

// D = f(x + beta C). Not where C is the sum of earlier pieces of k and its sum with x may be finite after all.
__device__ __forceinline__ bool store_element(const Problem& p, const float* c, float* d, float x) {
  const float sum = add_c(p, x, c);
  if (p.k_before > 0 && may_be_finite(sum, x, *c)) return false;
  *d = activated(p.activation, sum);
  return true;
}

// D's element from its sum times 2^exponent; not where D adds up pieces of k and overflows.
__device__ __forceinline__ bool store_redone(const Job& job, int batch, int64_t i, int64_t j, float sum, int exponent) {
  int of_alpha;
  const float alpha = frexpf(job.p.alpha, &of_alpha);
  return store_element(job.p, job.p.c.matrix(batch).at(i, j), job.p.d.matrix(batch).at(i, j),
                       unscaled(alpha * sum, exponent + of_alpha));
}

// The same from a sum over all of k, also where D adds up pieces of it: there the sum may be finite that the pieces'
// sums are not.
__device__ __forceinline__ void store_whole(const Job& job, int batch, int64_t i, int64_t j, float sum) {
  if (job.p.k_before > 0)
    *job.p.d.matrix(batch).at(i, j) = activated(job.p.activation, sum);
  else
    store_redone(job, batch, i, j, sum, 0);
}

}  // namespace sgemm::split
