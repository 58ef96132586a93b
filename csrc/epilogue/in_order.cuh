// Sums that are finite in order of k, and overflow in parts.
//
// A chain of FMAs over finite operands may end at an infinity, but never at NaN, for the product is exact: so a part
// that is NaN says that the operands hold infinities or NaN, and NaN is right. Parts of opposite infinities would give
// a NaN that says nothing; their sum is a conflict, which later sums keep. What is an infinity or a conflict in the end
// is computed again in order of k: as rarely as data overflow, out of the kernels' way.
#pragma once
#include <cfloat>

#include "../problem/elements.h"

namespace sgemm {

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

// A NaN that no arithmetic gives. It is stored and compared, never added to: sums of it go through AddParts.
__device__ __forceinline__ float conflict() { return __uint_as_float(0x7fc0c0de); }
__device__ __forceinline__ bool is_conflict(float x) { return __float_as_uint(x) == 0x7fc0c0de; }
__device__ __forceinline__ bool is_nan_of_operands(float x) { return x != x && !is_conflict(x); }

// For ordinary data, and to find out whether they are.
struct Add {
  __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};

// For all.
struct AddParts {
  __device__ __forceinline__ float operator()(float x, float y) const {
    const float sum = x + y;
    return sum == sum || is_nan_of_operands(x) || is_nan_of_operands(y) ? sum : conflict();
  }
};

// Adds a chain to the sum of those before it, and begins another. Where that overflows, the chain goes on instead: the
// sum of those before stays finite.
__device__ __forceinline__ void end_chain(float& total, float& chain) {
  const float sum = total + chain;
  if (!is_finite(sum)) return;
  total = sum;
  chain = 0;
}

// 0 if all are finite and `sum` was 0, else NaN.
template <int N>
__device__ __forceinline__ float zero_if_finite(const float (&x)[N], float sum = 0) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum = fmaf(x[i], 0.0f, sum);
  return sum;
}

// A sum that goes to memory as a slice of another: there a conflict is an infinity.
__device__ __forceinline__ float as_slice(float sum) { return is_conflict(sum) ? INFINITY : sum; }

// Element (i, j) of A B in order of k, from the first of k that is in memory; `parts` is what its parts came to, no
// finite sum. An infinity without a conflict is kept as soon as the sum reaches it: no part had the opposite one.
static __device__ __noinline__ float in_order(const Problem& p, int64_t entry, int64_t i, int64_t j, float parts) {
  if (is_nan_of_operands(parts)) return parts;
  constexpr int kAtOnce = 8;  // reads: one after the other, each would wait for memory
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
    if (sum != sum || sum == parts) break;
    a = a + kAtOnce * p.a.col;
    b = b + kAtOnce * p.b.row;
  }
  return sum;
}

}  // namespace sgemm
