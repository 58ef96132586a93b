// The online softmax of a thread's two rows, whose columns four lanes share.
//
// Source: Milakov, Gimelshein: Online normalizer calculation for softmax, 2018, and Dao: FlashAttention-2, 2023.
#pragma once
#include "mask.cuh"
#include "tiles.cuh"

namespace sgemm::attention {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f, kWeightScale = 0x1p14f;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns the larger over the four lanes of a row.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// The largest of row r among a thread's sums of a block.
template <int N>
__device__ __forceinline__ float largest_sum(const float (&s)[N], int r) {
  float m = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
  for (int j = 1; j < N / 4; ++j) m = fmaxf(m, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
  return largest_of_row(m);
}

// take() turns a block's logits into weights, 2^14 e^(x - m), and tells how the weights before shrink. m is the row's
// largest logit so far. MASKED: x are logits, with their mask. Otherwise x are sums, and c x is a logit times log2(e).
//
// 2^(y + 14) would save a multiplication, but y + 14 is rounded to 2^-21 for the largest weights.
template <bool MASKED>
struct Softmax {
  // Without a mask, the negative of the row's largest c x; with a mask, the largest x.
  float extreme[2] = {MASKED ? -INFINITY : INFINITY, MASKED ? -INFINITY : INFINITY};
  float sum[2] = {};     // of the weights in this thread
  float shrunk[2] = {};  // factor of the blocks before

  template <int N>
  __device__ __forceinline__ void take(float (&x)[N], const float (&c)[2]) {
    float add[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float m = largest_sum(x, r);
      if constexpr (MASKED) {
        const float largest = fmaxf(extreme[r], m);
        add[r] = largest == -INFINITY ? 0.0f : -largest;  // no key yet: all weights become 0
        shrunk[r] = exp2_approx((extreme[r] + add[r]) * kLog2E);
        extreme[r] = largest;
      } else {
        add[r] = fminf(extreme[r], -m * c[r]);
        shrunk[r] = exp2_approx(add[r] - extreme[r]);
        extreme[r] = add[r];
      }
    }
    float sums[2][2] = {};
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const int r = e / 2 % 2;
      const float y = MASKED ? (x[e] + add[r]) * kLog2E : fmaf(x[e], c[r], add[r]);
      x[e] = exp2_approx(y) * kWeightScale;
      sums[r][e % 2] += x[e];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = fmaf(sum[r], shrunk[r], sums[r][0] + sums[r][1]);
  }

  // Returns true if row r has to be recomputed. Its logits are sums times c, and K's planes make an absolute error in
  // sums. That error must not matter beside the largest logit so far, even if it comes from large keys that take no
  // part. Without a mask, the largest logit is also rounded before it is subtracted: by less than 1/4, if it is below
  // kMostLogit.
  __device__ __forceinline__ bool loses_accuracy(int r, float c) const {
    const float m = fmaxf(1, fabsf(extreme[r]));
    return MASKED ? !(c <= kMostFactor * fminf(m, kMostMasked)) : !(c <= kMostFactor * m && m <= kMostLogit);
  }

  // Adds up the row's weights over its lanes.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
  }

  // ln of the sum of e^x. A row without keys has 0, as in PyTorch's kernel, whose backward expects it.
  __device__ __forceinline__ float logsumexp(int r) const {
    if (MASKED && sum[r] == 0) return 0;
    const float of_weights = log2f(sum[r]) - 14;
    return MASKED ? fmaf(of_weights, kLn2, extreme[r]) : (of_weights - extreme[r]) * kLn2;
  }
};

// The first key that doesn't take part in a thread's two rows, because of causality or because there are no more.
struct KeyLimits {
  int of_row[2];

  __device__ __forceinline__ KeyLimits(const attention::Problem& p, int row)
      : of_row{p.causal ? min(row + 1, p.keys) : p.keys, p.causal ? min(row + 9, p.keys) : p.keys} {}

  // Sets sums of other keys to -Inf; `key` is the thread's first key of the block.
  template <int N>
  __device__ __forceinline__ void apply(float (&s)[N], int key) const {
#pragma unroll
    for (int e = 0; e < N; ++e)
      if (key + e / 4 * 8 + e % 2 >= of_row[e / 2 % 2]) s[e] = -INFINITY;
  }
};

}  // namespace sgemm::attention
