// A thread's sums of P V: rows r and r + 8, two neighbouring columns of each eight.
#pragma once
#include "softmax.cuh"

namespace sgemm::attention {

// Sums are in units of the blocks' scale of V. Where scales shrink by more than 2^40, the unit doesn't follow.
template <int N>
struct Output {
  static constexpr float kMostShrinking = 0x1p-40f;
  float o[N], unit, top;

  __device__ __forceinline__ void clear() {
    unit = top = 0;
#pragma unroll
    for (int e = 0; e < N; ++e) o[e] = 0;
  }

  // Adds the first window of a block with this scale of V; `shrunk`: the rows' factors of the blocks before. Returns
  // the factor of the block's sums.
  __device__ __forceinline__ float add_first(float (&sums)[N], float scale, const float (&shrunk)[2]) {
    top = fmaxf(top, scale);
    const float next = fmaxf(scale, top * kMostShrinking), inverse = reciprocal(next);
    const float factors[2] = {shrunk[0] * (unit * inverse), shrunk[1] * (unit * inverse)}, of_new = scale * inverse;
    unit = next;
    multiply(sums, of_new);
#pragma unroll
    for (int e = 0; e < N; ++e) o[e] = fmaf(o[e], factors[e / 2 % 2], sums[e]);
    return of_new;
  }

  // Adds another window of the block.
  __device__ __forceinline__ void add(float (&sums)[N], float of_new) {
    multiply(sums, of_new);
#pragma unroll
    for (int e = 0; e < N; ++e) o[e] += sums[e];
  }

  // Returns true if row r, times `inverse`, is so far below V's largest element that V's planes are too coarse for it,
  // such as if large values belong to keys that take no part.
  __device__ __forceinline__ bool loses_accuracy(int r, float inverse) const {
    float most = 0;
#pragma unroll
    for (int e = 2 * r; e < N; e += 4) most = fmaxf(most, fmaxf(fabsf(o[e]), fabsf(o[e + 1])));
    return largest_of_row(most) * inverse * unit < top && top > 0x1p-126f;
  }

 private:
  __device__ static __forceinline__ float reciprocal(float power_of_two) {
    return __uint_as_float((254u << 23) - __float_as_uint(power_of_two));
  }
  __device__ static __forceinline__ void multiply(float (&sums)[N], float factor) {
    if (factor == 1) return;
#pragma unroll
    for (int e = 0; e < N; ++e) sums[e] *= factor;
  }
};

}  // namespace sgemm::attention
