// The kernel: two consumer warpgroups of 64 queries each, fed by one thread.
//
// Idea:  S = Q K^T and P V are three float16 products each. The weights go from S's registers to the next product's. A
//        block's P V is issued first and S of the next block behind it: O is updated while S is computed. The
//        warpgroups take turns at the tensor cores, so that one's softmax runs under the other's products.
// Bound: tensor cores; for short sequences, memory.
// Source: Shah et al., FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision, 2024.
#pragma once
#include "../gpu/warpgroups.cuh"
#include "converter.cuh"
#include "output.cuh"
#include "queries.cuh"
#include "recompute.cuh"

namespace sgemm::attention {

template <class S, bool MASKED>
class Consumer {
  static constexpr int kSums = S::kKeys / 2, kOutputs = S::kDepth / 2, kSteps = S::kKeys / 16;
  static constexpr int kStepsOfWindow = S::kWindow / 16;

  const Job& job_;
  Shared<S>& shared_;
  const int warpgroup_;
  const uint32_t queries_, ring_;  // addresses
  PipelineState<S::kSlots> at_;
  PipelineState<S::kQueryBuffers> queries_at_;
  float s_[kSums];
  uint32_t hi_[kSteps][4], lo_[kSteps][4];  // weights
  float sums_[S::kWindows][kOutputs];
  Output<kOutputs> output_;

 public:
  __device__ __forceinline__ Consumer(const Job& job, char* memory, Shared<S>& shared, int thread)
      : job_(job),
        shared_(shared),
        warpgroup_(__reduce_max_sync(~0u, thread / 128)),  // uniform, in the compiler's eyes as well
        queries_(hopper::shared_address(memory)),
        ring_(queries_ + S::kQueryBuffers * S::kQueryBytes) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) s_[e] = 0;
#pragma unroll
    for (int w = 0; w < S::kWindows; ++w)
#pragma unroll
      for (int e = 0; e < kOutputs; ++e) sums_[w][e] = 0;
  }

  __device__ __forceinline__ void run(char* memory) {
    const Turns turns(warpgroup_);
#pragma unroll 1
    for (int index = blockIdx.x; index < job_.tiles; index += gridDim.x)
      compute(tile_at<S>(job_, index), memory, turns);
    turns.finish();
  }

 private:
  // Returns the thread of the warpgroup, read anew, so that no registers are kept for what derives from it.
  __device__ __forceinline__ static int thread() { return hopper::opaque(threadIdx.x) % 128u; }

  __device__ __forceinline__ void compute(const TileOfQueries& tile, char* memory, const Turns& turns) {
    const int thread = Consumer::thread();
    const int row_of_tile = warpgroup_ * 64 + thread / 32 * 16 + thread % 32 / 4;
    const int row = tile.first + row_of_tile;
    const Problem& p = job_.p;
    hopper::wait_suspended(&shared_.q_full[queries_at_.stage][warpgroup_], queries_at_.parity);
    split_queries<S>(job_, memory + queries_at_.stage * S::kQueryBytes, warpgroup_ * 64 + thread / 32 * 16, shared_);
    const volatile float* const q_scales = &shared_.q_scales[row_of_tile];  // anew for each block: registers are short
    hopper::sync_some(4 + warpgroup_, 128);
    const KeyLimits limits(p, row);
    const int64_t of_mask = tile.head / p.heads * p.mask.batch + tile.head % p.heads * p.mask.head;
    const int first_limit = p.causal ? min(tile.first + warpgroup_ * 64 + 1, p.keys) : p.keys;  // of these 64 rows
    Softmax<MASKED> softmax;
    MaskOfBlock<MASKED ? kSums : 2> mask;
    bool again[2] = {q_scales[0] == kRecompute, q_scales[8] == kRecompute};  // rows to be recomputed
    output_.clear();

    const auto load_mask = [&](int j) {
      if constexpr (MASKED) mask.load(p, of_mask, row, j * S::kKeys + thread % 4 * 2);
    };
    const auto weigh = [&](int j, float k_scale) {
      // A factor below float32's range would make 0 of -Inf; sums of such a small factor don't matter.
      const float c[2] = {fmaxf(q_scales[0] * k_scale * job_.factor, 0x1p-126f),
                          fmaxf(q_scales[8] * k_scale * job_.factor, 0x1p-126f)};
      if constexpr (MASKED) {
#pragma unroll
        for (int e = 0; e < kSums; ++e) s_[e] = fmaf(s_[e], c[e / 2 % 2], mask.x[e]);
      }
      if ((j + 1) * S::kKeys > first_limit) limits.apply(s_, j * S::kKeys + thread % 4 * 2);
      softmax.take(s_, c);
#pragma unroll
      for (int r = 0; r < 2; ++r) again[r] |= k_scale == kRecompute || softmax.loses_accuracy(r, c[r]);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) split_pair(s_[8 * i + 2 * e], s_[8 * i + 2 * e + 1], hi_[i][e], lo_[i][e]);
    };
    // ptxas moves arithmetic past a wait for products, but not past a loop, such as the wait for a barrier.
    const auto keep_order = [&] { hopper::wait(&shared_.q_full[queries_at_.stage][warpgroup_], queries_at_.parity); };

    int held = take();
    turns.begin();
    multiply_keys(held);
    turns.end();
    float scale = scale_of(held);
    load_mask(0);
    hopper::wait_products<0>();
    hopper::fence_registers(s_);
    release(held);
    weigh(0, scale);
#pragma unroll 1
    for (int j = 1; j < tile.blocks; ++j) {
      const int of_values = take();
      turns.begin();
      multiply_values(of_values);
      const float value_scale = scale_of(of_values);
      float of_new = 0;
      if constexpr (S::kWindows == 2) {
        hopper::wait_products<1>();
        hopper::fence_registers(sums_[0]);
        of_new = output_.add_first(sums_[0], value_scale, softmax.shrunk);
        hopper::fence_registers(output_.o);
      }
      held = take();
      multiply_keys(held);
      turns.end();
      scale = scale_of(held);
      hopper::wait_products<1>();
      hopper::fence_registers(sums_[S::kWindows - 1]);
      fence_weights();
      release(of_values);
      if constexpr (S::kWindows == 2)
        output_.add(sums_[1], of_new);
      else
        output_.add_first(sums_[0], value_scale, softmax.shrunk);
#pragma unroll
      for (int r = 0; r < 2; ++r) again[r] |= value_scale == kRecompute;
      hopper::fence_registers(output_.o);
      load_mask(j);
      keep_order();
      hopper::wait_products<0>();
      hopper::fence_registers(s_);
      release(held);
      weigh(j, scale);
    }
    if (thread % 32 == 0) hopper::arrive(&shared_.q_empty[queries_at_.stage][warpgroup_]);
    queries_at_.advance();
    held = take();
    turns.begin();
    multiply_values(held);
    turns.end();
    scale = scale_of(held);
    softmax.finish();
    hopper::wait_products<0>();
#pragma unroll
    for (int w = 0; w < S::kWindows; ++w) hopper::fence_registers(sums_[w]);
    fence_weights();
    release(held);
    const float of_new = output_.add_first(sums_[0], scale, softmax.shrunk);
    if constexpr (S::kWindows == 2) output_.add(sums_[1], of_new);
#pragma unroll
    for (int r = 0; r < 2; ++r) again[r] |= scale == kRecompute;
    finish(tile, row, softmax, again);
  }

  // Waits for the next block of the ring, and returns its slot.
  __device__ __forceinline__ int take() {
    const int slot = at_.stage;
    hopper::wait_suspended(&shared_.full[slot], at_.parity);
    at_.advance();
    return slot;
  }
  __device__ __forceinline__ void release(int slot) {
    if (threadIdx.x % 32 == 0) hopper::arrive(&shared_.empty[slot]);
  }
  __device__ __forceinline__ float scale_of(int slot) const {
    return *reinterpret_cast<const volatile float*>(&shared_.scales[slot]);
  }
  __device__ __forceinline__ void fence_weights() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      hopper::fence_registers(hi_[i]);
      hopper::fence_registers(lo_[i]);
    }
  }

  // Issues S = Q K^T. The corrections come first, so that their sum is truncated while it is small.
  __device__ __forceinline__ void multiply_keys(int slot) {
    // The views are made anew for each block; else registers would be kept for them.
    const AlongDepth queries(queries_ + queries_at_.stage * S::kQueryBytes + hopper::opaque(warpgroup_) * 8192);
    const AlongDepth keys(ring_ + slot * kBlockBytes);
    const auto q = [&](uint32_t i, int plane) {
      return queries.at(i / 4 * (S::kQueries * 128) + plane * S::kQueryPlane, i % 4);
    };
    const auto k = [&](uint32_t i, int plane) { return keys.at(i / 4 * (S::kKeys * 128) + plane * S::kPlane, i % 4); };
    hopper::fence_registers(s_);
    hopper::fence_products();
    uint32_t order = 0;
#pragma unroll
    for (int i = 0; i < S::kDepth / 16; ++i) {
      // Not before: registers are short.
      if (i == S::kDepth / 16 - 1)
        order = uniform_order(reinterpret_cast<const volatile uint32_t*>(&shared_.scales[slot].y));
      hopper::multiply<__half, false, false>(s_, q(i, 0), k(i, 1), i > 0);
      hopper::multiply<__half, false, false>(s_, q(i, 1), k(i, 0), true);
    }
#pragma unroll
    for (int i = 0; i < S::kDepth / 16; ++i) {
      const uint32_t step = step_at<S::kDepth>(order, i);
      hopper::multiply<__half, false, false>(s_, q(step, 0), k(step, 0), true);
    }
    hopper::commit_products();
  }

  // Issues the windows of P V.
  __device__ __forceinline__ void multiply_values(int slot) {
    const AcrossDepth<S> values(ring_ + slot * kBlockBytes);
#pragma unroll
    for (int w = 0; w < S::kWindows; ++w) {
      const auto v = [&](int i, int plane) { return values.at(plane * S::kPlane, i); };
      hopper::fence_registers(sums_[w]);
      hopper::fence_products();
#pragma unroll
      for (int i = w * kStepsOfWindow; i < (w + 1) * kStepsOfWindow; ++i) {
        hopper::multiply_registers<true>(sums_[w], hi_[i], v(i, 1), i > w * kStepsOfWindow);
        hopper::multiply_registers<true>(sums_[w], lo_[i], v(i, 0), true);
      }
#pragma unroll
      for (int i = w * kStepsOfWindow; i < (w + 1) * kStepsOfWindow; ++i)
        hopper::multiply_registers<true>(sums_[w], hi_[i], v(i, 0), true);
      hopper::commit_products();
    }
  }

  // Stores the warp's 16 rows, and computes some of them again.
  __device__ __forceinline__ void finish(const TileOfQueries& tile, int row, const Softmax<MASKED>& softmax,
                                         const bool (&again)[2]) {
    const Problem& p = job_.p;
    const Matrix out = p.out.matrix(tile.head);
    const int lane = thread() % 32;
    uint32_t recomputed[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool none = softmax.sum[r] == 0;  // no key takes part
      const float inverse = none ? 0 : 1 / softmax.sum[r];
      const bool coarse = output_.loses_accuracy(r, inverse);  // by all lanes
      const bool loses = again[r] || (coarse && !none);
      const int of_row = row + 8 * r;
      recomputed[r] = __ballot_sync(~0u, loses && of_row < p.queries && lane % 4 == 0);
      if (of_row < p.queries && !loses) {
        float* const to = out.at(of_row, lane % 4 * 2);
#pragma unroll
        for (int e = 2 * r; e < kOutputs; e += 4)
          if (e / 4 * 8 < p.value_depth)
            hopper::store(to + e / 4 * 8, make_float2(output_.o[e] * inverse * output_.unit,
                                                      output_.o[e + 1] * inverse * output_.unit));
      }
      if (p.logsumexp && lane % 4 == 0 && (!loses || of_row >= p.queries) && of_row < job_.padded_queries)
        p.logsumexp[tile.head * job_.padded_queries + of_row] = of_row < p.queries ? softmax.logsumexp(r) : INFINITY;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll 1
      for (uint32_t left = recomputed[r]; left; left &= left - 1)
        recompute_row(job_, tile.head, row - lane / 4 + 8 * r + (__ffs(left) - 1) / 4);
  }
};

template <class S, bool MASKED>
__global__ void __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ Job job, const __grid_constant__ CUtensorMap queries,
           const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Shared<S> shared;
  if (threadIdx.x == 0)
    for (const CUtensorMap* map : {&queries, &keys, &values}) hopper::prefetch_map(map);
  shared.init();
  __syncthreads();
  hopper::wait_for_predecessor();
  hopper::launch_dependents();
  if (threadIdx.x < 128) {
    hopper::release_registers<kProducerRegisters>();
    if (job.own) {
      Converter<S, true>(job, queries, keys, values, memory, shared).run();
    } else {
      if (threadIdx.x == 0) produce<S>(job, queries, memory, shared);
      if (threadIdx.x >= 32) Converter<S, false>(job, queries, keys, values, memory, shared).run();
    }
  } else {
    hopper::acquire_registers<kConsumerRegisters>();
    Consumer<S, MASKED>(job, memory, shared, threadIdx.x - 128).run(memory);
  }
}

}  // namespace sgemm::attention
