// Recomputes rows that met Inf or NaN in Q, K or V, or for which the planes are too coarse: in float32, by FMAs and
// expf, from the tensors themselves. Keys whose mask is -Inf or false take no part.
#pragma once
#include "dot.cuh"
#include "softmax.cuh"

namespace sgemm::attention {

// Computes a row of a head by one warp, 32 keys at a time.
__device__ __forceinline__ void recompute_row(const Job& job, int head, int row) {
  const Problem& p = job.p;
  const int lane = threadIdx.x % 32, group = head / (p.heads / p.groups);
  const ConstMatrix q = p.q.matrix(head), k = p.k.matrix(group), v = p.v.matrix(group);
  const int64_t of_mask = head / p.heads * p.mask.batch + head % p.heads * p.mask.head + row * p.mask.row;
  const int keys = p.causal ? min(row + 1, p.keys) : p.keys;
  float largest = -INFINITY, sum = 0, o[kColumnsOfLane] = {};
#pragma unroll 1
  for (int first = 0; first < keys; first += 32) {
    const int key = first + lane;
    const float mask = key < keys ? mask_at(p, of_mask, key) : -INFINITY;
    float x = -INFINITY;
    if (mask != -INFINITY) x = fmaf(dot(q, row, k, key), p.scale, mask);
    float m = hopper::max_or_nan(largest, x);
#pragma unroll
    for (int d = 16; d; d /= 2) m = hopper::max_or_nan(m, __shfl_xor_sync(~0u, m, d));
    const float shrunk = largest == m ? 1 : expf(largest - m);
    const float weight = x == -INFINITY && m == -INFINITY ? 0 : expf(x - m);
    largest = m;
    sum = sum * shrunk + weight;      // of this lane's keys
    float sums[kColumnsOfLane] = {};  // of these keys alone, so that chains of additions stay short
    const uint32_t present = __ballot_sync(~0u, mask != -INFINITY);
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
      const float w = __shfl_sync(~0u, weight, i);
      if (!(present >> i & 1)) continue;
#pragma unroll
      for (int c = 0; c < kColumnsOfLane; ++c)
        if (c * 32 + lane < p.value_depth) sums[c] = fmaf(w, *v.at(first + i, c * 32 + lane), sums[c]);
    }
#pragma unroll
    for (int c = 0; c < kColumnsOfLane; ++c) o[c] = fmaf(o[c], shrunk, sums[c]);
  }
#pragma unroll
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  const bool none = largest == -INFINITY;
#pragma unroll
  for (int c = 0; c < kColumnsOfLane; ++c)
    if (c * 32 + lane < p.value_depth) *p.out.matrix(head).at(row, c * 32 + lane) = none ? 0 : o[c] / sum;
  if (p.logsumexp && lane == 0) p.logsumexp[head * job.padded_queries + row] = none ? 0 : largest + logf(sum);
}

}  // namespace sgemm::attention
