// Recomputes gradients of rows that met Inf or NaN, or for which the planes are too coarse: in float32, by FMAs and
// expf, from the tensors themselves. Keys whose mask is -Inf or false have the weight 0, which times
// Inf or NaN is NaN.
#pragma once
#include "../mask.cuh"
#include "shape.cuh"

namespace sgemm::attention::backward {

constexpr int kColumnsOfLane = kMostDepth / 32;

// A weight and the gradient of its logit, of query `row` and `key` of a head; zeros if the key takes no part.
__device__ __forceinline__ float2 weight_of(const Job& job, int head, int row, int key) {
  const Problem& p = job.g.p;
  if (row >= p.queries || key >= p.keys || (p.causal && key > row)) return make_float2(0, 0);
  const int64_t of_mask = head / p.heads * p.mask.batch + head % p.heads * p.mask.head + row * p.mask.row;
  const float mask = mask_at(p, of_mask, key);
  if (mask == -INFINITY) return make_float2(0, 0);
  const int group = head / job.share;
  const auto dot = [](const ConstMatrix& x, int i, const ConstMatrix& y, int j, int depth) {
    float sums[4] = {};
#pragma unroll 1
    for (int d = 0; d < depth; d += 4)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[c] = fmaf(*x.at(i, d + c), *y.at(j, d + c), sums[c]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  };
  const float logit = fmaf(dot(p.q.matrix(head), row, p.k.matrix(group), key, p.depth), p.scale, mask);
  const float dp = dot(job.g.grad.matrix(head), row, p.v.matrix(group), key, p.value_depth);
  const QueryBlock& block = job.queries[int64_t{head} * job.query_blocks + row / kRows];
  const float weight = expf(logit - job.g.logsumexp[head * job.padded_queries + row]);
  return make_float2(weight, weight * (dp - block.row_delta[row % kRows]));
}

// Adds the products of 32 lanes' weights and rows of x, from row `first` on, to a lane's columns.
__device__ __forceinline__ void add_rows(float (&total)[kColumnsOfLane], float weight, bool exists,
                                         const ConstMatrix& x, int first) {
  const uint32_t rows = __ballot_sync(~0u, exists);
  float sums[kColumnsOfLane] = {};  // of these rows alone, so that chains of additions stay short
#pragma unroll 1
  for (int i = 0; i < 32; ++i) {
    const float w = __shfl_sync(~0u, weight, i);
    if (!(rows >> i & 1)) continue;
#pragma unroll
    for (int c = 0; c < kColumnsOfLane; ++c) {
      const int column = c * 32 + threadIdx.x % 32;
      if (column < x.cols) sums[c] = fmaf(w, *x.at(first + i, column), sums[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kColumnsOfLane; ++c) total[c] += sums[c];
}

__device__ __forceinline__ void store_row(const Matrix& to, int row, const float (&x)[kColumnsOfLane], float factor) {
#pragma unroll
  for (int c = 0; c < kColumnsOfLane; ++c) {
    const int column = c * 32 + threadIdx.x % 32;
    if (column < to.cols) *to.at(row, column) = x[c] * factor;
  }
}

// A row of dK and dV, by one warp; a lane has a query.
static __device__ __noinline__ void recompute_key(const Job& job, int group, int key) {
  const Problem& p = job.g.p;
  float dk[kColumnsOfLane] = {}, dv[kColumnsOfLane] = {};
#pragma unroll 1
  for (int head = group * job.share; head < (group + 1) * job.share; ++head)
#pragma unroll 1
    for (int first = p.causal ? key / 32 * 32 : 0; first < p.queries; first += 32) {
      const int row = first + threadIdx.x % 32;
      const float2 weight = weight_of(job, head, row, key);
      const bool exists = row < p.queries && !(p.causal && key > row);
      add_rows(dv, weight.x, exists, job.g.grad.matrix(head), first);
      add_rows(dk, weight.y, exists, p.q.matrix(head), first);
    }
  store_row(job.g.k.matrix(group), key, dk, p.scale);
  store_row(job.g.v.matrix(group), key, dv, 1);
}

// A row of dQ, and of the mask's gradient, by one warp; a lane has a key.
static __device__ __noinline__ void recompute_query(const Job& job, int head, int row) {
  const Problem& p = job.g.p;
  const int keys = p.causal ? min(row + 1, p.keys) : p.keys;
  float dq[kColumnsOfLane] = {};
#pragma unroll 1
  for (int first = 0; first < keys; first += 32) {
    const int key = first + threadIdx.x % 32;
    const float gradient = weight_of(job, head, row, key).y;
    add_rows(dq, gradient, key < keys, p.k.matrix(head / job.share), first);
    if (job.g.mask && key < keys) job.g.mask[(int64_t{head} * p.queries + row) * p.keys + key] = gradient;
  }
  if (job.g.q.data) store_row(job.g.q.matrix(head), row, dq, p.scale);
}

}  // namespace sgemm::attention::backward
