// Recomputes gradients of rows that met Inf or NaN, or for which the planes are too coarse: in float32, by FMAs and
// expf, from the tensors themselves. Keys whose mask is -Inf or false take no part.
#pragma once
#include "../dot.cuh"
#include "../mask.cuh"
#include "shape.cuh"

namespace sgemm::attention::backward {

struct Weight {
  bool takes_part;
  float weight, gradient;  // of the logit
};

// `queries`: those of the head.
__device__ __forceinline__ Weight weight_of(const Job& job, const QueryBlock* queries, int head, int row, int key) {
  const Problem& p = job.g.p;
  if (row >= p.queries || key >= p.keys || (p.causal && key > row)) return {};
  const int64_t of_mask = head / p.heads * p.mask.batch + head % p.heads * p.mask.head + row * p.mask.row;
  const float mask = mask_at(p, of_mask, key);
  if (mask == -INFINITY) return {};
  const int group = head / job.share;
  const float logit = fmaf(dot(p.q.matrix(head), row, p.k.matrix(group), key), p.scale, mask);
  const float dp = dot(job.g.grad.matrix(head), row, p.v.matrix(group), key);
  const float weight = expf(at_most_zero(logit - job.g.logsumexp[head * job.padded_queries + row]));
  return {true, weight, weight * (dp - queries[row / kRows].row_delta[row % kRows])};
}

// Adds the products of 32 lanes' weights and rows of x, from row `first` on, to a lane's columns.
__device__ __forceinline__ void add_rows(float (&total)[kColumnsOfLane], float weight, bool takes_part,
                                         const ConstMatrix& x, int first) {
  const uint32_t rows = __ballot_sync(~0u, takes_part);
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

// A row of dK and dV, by one warp; a lane has a query. `queries`: those of the group's heads.
static __device__ __noinline__ void recompute_key(const Job& job, const QueryBlock* queries, int group, int key) {
  const Problem& p = job.g.p;
  float dk[kColumnsOfLane] = {}, dv[kColumnsOfLane] = {};
#pragma unroll 1
  for (int head = group * job.share; head < (group + 1) * job.share; ++head, queries += job.query_blocks)
#pragma unroll 1
    for (int first = p.causal ? key / 32 * 32 : 0; first < p.queries; first += 32) {
      const int row = first + threadIdx.x % 32;
      const Weight x = weight_of(job, queries, head, row, key);
      add_rows(dv, x.weight, x.takes_part, job.g.grad.matrix(head), first);
      add_rows(dk, x.gradient, x.takes_part, p.q.matrix(head), first);
    }
  store_row(job.g.k.matrix(group), key, dk, p.scale);
  store_row(job.g.v.matrix(group), key, dv, 1);
}

// A row of dQ, and of the mask's gradient, by one warp; a lane has a key.
static __device__ __noinline__ void recompute_query(const Job& job, const QueryBlock* queries, int head, int row) {
  const Problem& p = job.g.p;
  const int keys = p.causal ? min(row + 1, p.keys) : p.keys;
  float dq[kColumnsOfLane] = {};
#pragma unroll 1
  for (int first = 0; first < keys; first += 32) {
    const int key = first + threadIdx.x % 32;
    const Weight x = weight_of(job, queries, head, row, key);
    add_rows(dq, x.gradient, x.takes_part, p.k.matrix(head / job.share), first);
    if (job.g.mask && key < keys) job.g.mask[(int64_t{head} * p.queries + row) * p.keys + key] = x.gradient;
  }
  if (job.g.q.data) store_row(job.g.q.matrix(head), row, dq, p.scale);
}

}  // namespace sgemm::attention::backward
