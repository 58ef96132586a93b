// The pass in front: planes and scales of Q, dO, K and V, and delta.
#pragma once
#include "../../gpu/dependent_launch.cuh"
#include "../softmax.cuh"
#include "../step_order.cuh"
#include "shape.cuh"

namespace sgemm::attention::backward {

// A thread block has 64 rows. A thread has a quad of columns of several rows, and kQuads lanes share a row.
template <class S>
class Preparation {
  static constexpr int kRowsAtOnce = S::kPassThreads / S::kQuads, kPerThread = kRows / kRowsAtOnce;
  static constexpr int kWarps = S::kPassThreads / 32;
  using Quads = float4[kPerThread];

  const Job& job_;

 public:
  // A thread's elements of a block of queries, or of keys.
  struct Queries {
    Quads q, grad, out;
    float logsumexp[kPerThread];
  };
  struct Keys {
    Quads k, v;
  };

  __device__ __forceinline__ explicit Preparation(const Job& job) : job_(job) {}

  // Writes the planes of a block, of all heads' queries and then of all groups' keys, to the workspace.
  __device__ __forceinline__ void run(int block) const {
    const int query_blocks = job_.heads * job_.query_blocks;
    if (block < query_blocks) {
      const int64_t offset = int64_t{block} * S::kBlock;
      const int head = block / job_.query_blocks, of_head = block % job_.query_blocks;
      store_queries(load_queries(head, of_head), head, of_head, job_.q + offset, job_.grad + offset,
                    job_.queries[block]);
    } else {
      block -= query_blocks;
      const int64_t offset = int64_t{block} * S::kBlock;
      const int group = block / job_.key_blocks, of_group = block % job_.key_blocks;
      store_keys(load_keys(group, of_group), group, of_group, job_.k + offset, job_.v + offset, job_.keys[block]);
    }
  }

  __device__ __forceinline__ Queries load_queries(int head, int block) const {
    const Problem& p = job_.g.p;
    const int first = block * kRows;
    Queries x;
    load(p.q.matrix(head), first, x.q);
    load(job_.g.grad.matrix(head), first, x.grad);
    load(job_.g.out.matrix(head), first, x.out);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = first + row(i);
      x.logsumexp[i] = at < p.queries ? job_.g.logsumexp[head * job_.padded_queries + at] : INFINITY;
    }
    return x;
  }
  __device__ __forceinline__ Keys load_keys(int group, int block) const {
    Keys x;
    load(job_.g.p.k.matrix(group), block * kRows, x.k);
    load(job_.g.p.v.matrix(group), block * kRows, x.v);
    return x;
  }

  __device__ __forceinline__ static int quad() { return threadIdx.x % S::kQuads; }
  __device__ __forceinline__ static int row(int i) { return i * kRowsAtOnce + threadIdx.x / S::kQuads; }

  __device__ __forceinline__ static void load(const ConstMatrix& x, int first, Quads& quads) {
    const float* from = x.data + (first + row(0)) * x.row + quad() * 4;
    const int rows = quad() * 4 < x.cols ? static_cast<int>(x.rows) - first : 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i, from += kRowsAtOnce * x.row)
      quads[i] = row(i) < rows ? __ldcs(reinterpret_cast<const float4*>(from)) : make_float4(0, 0, 0, 0);
  }

  // Reductions over the lanes of a row.
  __device__ __forceinline__ static uint32_t largest(uint32_t x) {
#pragma unroll
    for (int d = S::kQuads / 2; d; d /= 2) x = max(x, __shfl_xor_sync(~0u, x, d));
    return x;
  }
  __device__ __forceinline__ static float sum(float x) {
#pragma unroll
    for (int d = S::kQuads / 2; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
  }
  __device__ __forceinline__ static float dot(const float4& x, const float4& y) {
    return sum(fmaf(x.x, y.x, x.y * y.y) + fmaf(x.z, y.z, x.w * y.w));
  }
  __device__ __forceinline__ static float norm_of(const float4& x, float factor) {
    const float4 y = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    return sqrtf(dot(y, y)) * 1.0001f;
  }

  // Returns the largest of all threads' values, one by one.
  template <int N>
  __device__ __forceinline__ static void largest_of_block(uint32_t (&values)[N]) {
    __shared__ uint32_t of_warps[kWarps][N];
    __syncthreads();  // all have read the last call's
#pragma unroll
    for (int n = 0; n < N; ++n) {
      values[n] = __reduce_max_sync(~0u, values[n]);
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][n] = values[n];
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
#pragma unroll
      for (int n = 0; n < N; ++n) values[n] = max(values[n], of_warps[w][n]);
  }

  __device__ __forceinline__ static int exponent(uint32_t largest) {
    return split::row_exponent<split::Fp16x3>(largest);
  }

  // Stores a quad of a block's planes.
  __device__ __forceinline__ static void store(char* planes, int i, const float4& x, float factor) {
    static_assert(kRowsAtOnce % 8 == 0);  // the rows of a thread are swizzled alike
    store_quad(planes + i * kRowsAtOnce * 128, S::kPlane, kRows, row(0), quad(), x, factor);
  }

  // Writes the planes of a group's block of keys, and what is known of it.
  __device__ __forceinline__ void store_keys(const Keys& x, int group, int block, char* k_planes, char* v_planes,
                                             KeyBlock& to) const {
    const int first = block * kRows;
    if (threadIdx.x < 32) store_order(job_.g.p.k.matrix(group), first, to);
    const Quads &k = x.k, &v = x.v;
    uint32_t most[2] = {};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      most[0] = max(most[0], largest_of(k[i]));
      most[1] = max(most[1], largest_of(v[i]));
    }
    largest_of_block(most);
    const float k_factor = split::power_of_two(-exponent(most[0])), v_factor = split::power_of_two(-exponent(most[1]));
    uint32_t norms[2] = {};  // the largest, and the complement of the smallest that isn't 0
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      store(k_planes, i, k[i], k_factor);
      store(v_planes, i, v[i], v_factor);
      const float norm = norm_of(v[i], v_factor);
      norms[0] = max(norms[0], __float_as_uint(norm));
      if (norm > 0) norms[1] = max(norms[1], ~__float_as_uint(norm));
      if (quad() == 0) to.row_norm[row(i)] = norm;
    }
    largest_of_block(norms);
    if (threadIdx.x) return;
    to.k_scale = scale_of(most[0]);
    to.v_scale = scale_of(most[1]);
    to.v_norm = __uint_as_float(norms[0]);
    to.spread = norms[1] && to.v_norm > kMostSpread * __uint_as_float(~norms[1]);
    to.first = first;
  }

  // By a warp. The forward's blocks of keys may be longer; S's steps have the same order there.
  __device__ __forceinline__ static void store_order(const ConstMatrix& k, int first, KeyBlock& to) {
    constexpr int kLength = keys_of_block(S::kDepth);
    const int lane = threadIdx.x, row = first / kLength * kLength + lane / 4;
    const uint32_t order = order_of_steps<S::kDepth>([&](int step) {
      const int column = step * 16 + lane % 4 * 4;
      if (row >= k.rows || column >= k.cols) return 0u;
      return largest_of(*reinterpret_cast<const float4*>(k.at(row, column)));
    });
    if (lane == 0) to.order = order;
  }

  // Writes the planes of a head's block of queries, and what is known of it.
  __device__ __forceinline__ void store_queries(const Queries& x, int head, int block, char* q_planes, char* g_planes,
                                                QueryBlock& to) const {
    const Problem& p = job_.g.p;
    const int first = block * kRows;
    const bool masked = p.mask.kind != MaskKind::kNone;
    const Quads &q = x.q, &g = x.grad;
    uint32_t most_g[kPerThread], most_o[kPerThread];
    float delta[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      most_o[i] = largest(largest_of(x.out[i]));
      delta[i] = dot(g[i], x.out[i]);
    }
    uint32_t most[2] = {};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      most[0] = max(most[0], largest_of(q[i]));
      most_g[i] = largest(largest_of(g[i]));
      if (most_g[i] < split::kInfinity) most[1] = max(most[1], most_g[i]);  // other rows are recomputed
    }
    largest_of_block(most);
    const int g_top = exponent(most[1]);
    const float q_factor = copysignf(split::power_of_two(-exponent(most[0])), p.scale);
    uint32_t of_block[4] = {};  // norm, delta; complements of the smallest logit, output
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = first + row(i), less = min(max(exponent(most_g[i]) - g_top, kLeastShift), 0);
      const float g_factor = split::power_of_two(-(g_top + less)), norm = norm_of(g[i], g_factor);
      store(q_planes, i, q[i], q_factor);
      store(g_planes, i, g[i], g_factor);
      const bool exists = at < p.queries;
      const float sum = x.logsumexp[i];
      // Beyond kMostLogit a weight's error may exceed float16's range. With a mask, weights are at most 1.
      const float of_logit = masked                     ? fminf(fmaxf(1, fabsf(sum)), kMostMasked)
                             : fabsf(sum) <= kMostLogit ? fmaxf(1, fabsf(sum))
                                                        : 0;
      const float of_out = most_g[i] >= split::kInfinity ? -1 : most_o[i] ? __uint_as_float(most_o[i]) : INFINITY;
      of_block[0] = max(of_block[0], __float_as_uint(norm));
      of_block[1] = max(of_block[1], __float_as_uint(fabsf(delta[i]) * split::power_of_two(-less)));
      if (exists) {
        of_block[2] = max(of_block[2], ~__float_as_uint(of_logit));
        of_block[3] = max(of_block[3], of_out > 0 ? ~__float_as_uint(of_out) : ~0u);
      }
      if (quad()) continue;
      const float shift = 14 + less;
      const auto logit = [&](float y) { return masked ? -sum : fmaf(-sum, kLog2E, fmaf(-sum, kLog2ERest, y)); };
      to.logit[row(i)] = logit(shift);
      to.delta[row(i)] = delta[i] * split::power_of_two(-less);
      to.shift[row(i)] = __float2half(shift);
      to.row_logit[row(i)] = logit(14);
      to.row_delta[row(i)] = delta[i];
      to.row_norm[row(i)] = norm;
      to.row_g_scale[row(i)] = split::power_of_two(g_top + less);
      to.row_least_logit[row(i)] = of_logit;
      to.row_least_out[row(i)] = of_out;
    }
    largest_of_block(of_block);
    if (threadIdx.x) return;
    to.q_scale = scale_of(most[0]);
    to.g_scale = split::power_of_two(g_top);
    to.most_norm = __uint_as_float(of_block[0]);
    to.most_delta = __uint_as_float(of_block[1]);
    to.least_logit = __uint_as_float(~of_block[2]);
    to.mask = head / p.heads * p.mask.batch + head % p.heads * p.mask.head;
    to.first = first;
    to.least_out = ~of_block[3] ? __uint_as_float(~of_block[3]) : -1;
  }

  // log2(e) less kLog2E.
  static constexpr float kLog2ERest = 1.925963033500693e-8f;
};

template <class S>
__global__ void __launch_bounds__(S::kPassThreads) prepare(const __grid_constant__ Job job) {
  wait_for_predecessor();
  launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) *job.claims = 0;
  Preparation<S>(job).run(blockIdx.x);
}

}  // namespace sgemm::attention::backward
