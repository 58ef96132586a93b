// Recomputes sums that are not finite, in order of k.
//
// A row adds up parts of k in its own order. A part may overflow although the sum in order of k does not. If an operand
// holds Inf, a part that has overflowed to the opposite infinity gives NaN. So an infinity or a NaN of parts proves
// nothing. One thread therefore adds up the operands again in order of k, as one chain of FMAs. This is as rare as
// overflow, Inf and NaN, and outside the kernels' hot path. A chain ends early at a NaN.
#pragma once
#include <cfloat>

#include "../problem/elements.h"

namespace sgemm {

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

// Adds a chain to the sum of the previous chains, and begins another. If the sum overflows, the chain continues
// instead, and the sum of the previous chains stays finite.
__device__ __forceinline__ void end_chain(float& total, float& chain) {
  const float sum = total + chain;
  if (!is_finite(sum)) return;
  total = sum;
  chain = 0;
}

// Returns 0 if all elements are finite and `sum` was 0, else NaN.
template <int N>
__device__ __forceinline__ float zero_if_finite(const float (&x)[N], float sum = 0) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum = fmaf(x[i], 0.0f, sum);
  return sum;
}

// Returns element (i, j) of A B, added in order of k from the first k in memory (see Problem::k_before).
static __device__ __noinline__ float in_order(const Problem& p, int64_t entry, int64_t i, int64_t j) {
  constexpr int kAtOnce = 16;  // reads in flight; consecutive reads would each wait for memory
  ElementPointer a = matrix_of_a(p, entry).at(i, -p.k_before), b = matrix_of_b(p, entry).at(-p.k_before, j);
  float sum = 0;
#pragma unroll 1
  for (int64_t left = p.k_before + p.k; left > 0; left -= kAtOnce) {
    float x[kAtOnce], y[kAtOnce];
    const auto inside = [&](int q) { return q < left; };
    read_elements(
        x, a, [&](int q) { return q * p.a.col; }, inside);
    read_elements(
        y, b, [&](int q) { return q * p.b.row; }, inside);
#pragma unroll
    for (int q = 0; q < kAtOnce; ++q) sum = fmaf(x[q], y[q], sum);
    if (sum != sum) break;  // no later product changes a NaN
    a = a + kAtOnce * p.a.col;
    b = b + kAtOnce * p.b.row;
  }
  return sum;
}

}  // namespace sgemm
