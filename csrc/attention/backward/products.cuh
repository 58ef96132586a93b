// The products of one warpgroup: scores of its 64 rows and a block, and sums over the block's rows.
#pragma once
#include "../../gpu/warpgroups.cuh"
#include "../step_order.cuh"
#include "shape.cuh"

namespace sgemm::attention::backward {

// A warpgroup that multiplies. `Blocks` is Ring (pipeline.cuh) or Resident (resident.cuh).
template <class Blocks>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Job& job, char* memory, typename Blocks::Memory& shared)
      : job_(job),
        warpgroup_(__reduce_max_sync(~0u, Blocks::warpgroup_of(threadIdx.x))),  // uniform, in the compiler's eyes too
        blocks_(shared, memory, warpgroup_),
        turns_(warpgroup_) {}
  __device__ __forceinline__ void finish() const { turns_.finish(); }

 protected:
  const Job& job_;
  const int warpgroup_;
  Blocks blocks_;
  const Turns turns_;

  // Values that derive from the thread or the tile are computed anew: registers are short.
  __device__ __forceinline__ static uint32_t thread_of_block() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
  }
  __device__ __forceinline__ static int thread() { return thread_of_block() % 128; }
  // The thread's first row and column of scores.
  __device__ __forceinline__ static int row() { return thread() / 32 * 16 + thread() % 32 / 4; }
  __device__ __forceinline__ static int column() { return thread() % 4 * 2; }
  // ptxas moves arithmetic past a wait for products, but not past a loop. This one ends at once.
  __device__ __forceinline__ void keep_order() const {
    asm volatile(
        "{\n"
        ".reg .pred never;\n"
        "again:\n"
        "setp.eq.s32 never, %0, 0;\n"
        "@never bra again;\n"
        "}\n" ::"r"(job_.heads)
        : "memory");
  }
  // Waits for dP. `last`: these are the tile's last scores.
  __device__ __forceinline__ void wait_for_scores(float (&x)[32], bool last) const {
    keep_order();
    hopper::wait_products<0>();
    hopper::fence_registers(x);
    if (last) blocks_.release_own();
  }
};

// Issues s = A B^T, both along the depth. The corrections come first, so that their sum is truncated while it is small.
// `order`: that of the steps (../step_order.cuh), or null. It is read as late as possible: registers are short.
template <class S>
__device__ __forceinline__ void multiply_along_depth(float (&s)[32], const AlongDepth& a, const AlongDepth& b,
                                                     const uint32_t* order = nullptr) {
  const auto at = [](const AlongDepth& view, uint32_t i, int plane) {
    return view.at(i / 4 * (kRows * 128) + plane * S::kPlane, i % 4);
  };
  uint32_t steps = kOrderInMemory;
  hopper::fence_registers(s);
  hopper::fence_products();
#pragma unroll
  for (int i = 0; i < S::kDepth / 16; ++i) {
    if (i == S::kDepth / 16 - 1 && order) steps = uniform_order(order);
    hopper::multiply<__half, false, false>(s, at(a, i, 0), at(b, i, 1), i > 0);
    hopper::multiply<__half, false, false>(s, at(a, i, 1), at(b, i, 0), true);
  }
#pragma unroll
  for (int i = 0; i < S::kDepth / 16; ++i) {
    const uint32_t step = step_at<S::kDepth>(steps, i);
    hopper::multiply<__half, false, false>(s, at(a, step, 0), at(b, step, 0), true);
  }
  hopper::commit_products();
}

// Planes of weights, which multiply a block's rows.
struct Weights {
  uint32_t hi[4][4], lo[4][4];

  __device__ __forceinline__ void split(const float (&s)[32]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) split_pair(s[8 * i + 2 * j], s[8 * i + 2 * j + 1], hi[i][j], lo[i][j]);
  }
  __device__ __forceinline__ void fence() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      hopper::fence_registers(hi[i]);
      hopper::fence_registers(lo[i]);
    }
  }
};

// Issues sums = weights B for the 64 or 128 columns of B from `chunk` on.
template <class S, int N>
__device__ __forceinline__ void multiply_rows(float (&sums)[N], const Weights& weights, const AcrossDepth& b,
                                              int chunk = 0) {
  const auto at = [&](int plane, int i) { return b.at(chunk * (kRows * 128) + plane * S::kPlane, i); };
  hopper::fence_registers(sums);
  hopper::fence_products();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    hopper::multiply_registers<true>(sums, weights.hi[i], at(1, i), i > 0);
    hopper::multiply_registers<true>(sums, weights.lo[i], at(0, i), true);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) hopper::multiply_registers<true>(sums, weights.hi[i], at(0, i), true);
  hopper::commit_products();
}

// Adds a block's sums, times its rows' factors, in float32.
template <int N>
__device__ __forceinline__ void promote(float (&total)[N], const float (&sums)[N], float factor, float factor_8) {
#pragma unroll
  for (int e = 0; e < N; ++e) total[e] = fmaf(sums[e], e / 2 % 2 ? factor_8 : factor, total[e]);
}

// The exponent of the power of two that dS is divided by, from a bound of it. Very small bounds count as 2^-100.
__device__ __forceinline__ int weight_exponent(float bound) {
  return max(static_cast<int>(__float_as_uint(bound) >> 23) - 127, -100);
}
constexpr float kMostWeight = 0x1p120f;  // with larger bounds, or NaN, the tile is recomputed

// Returns true for Inf and NaN, and if planes are too coarse: a logit's factor is large (../softmax.cuh), or V's block
// is much larger than an output.
__device__ __forceinline__ bool is_coarse(float factor, float least_logit, float v_scale, float least_out,
                                          float bound) {
  return !(factor <= kMostFactor * least_logit) || !(v_scale <= least_out) || !(bound < kMostWeight);
}

}  // namespace sgemm::attention::backward
