// dQ, and the mask's gradient: a warpgroup owns 64 queries. Rows of its scores are queries, columns are keys.
#pragma once
#include "../softmax.cuh"
#include "pipeline.cuh"
#include "products.cuh"
#include "recompute.cuh"

namespace sgemm::attention::backward {

template <class Blocks, bool MASKED>
class QueryGradients : public Consumer<Blocks> {
  using Base = Consumer<Blocks>;
  using S = typename Blocks::Shape;
  using Base::column, Base::job_, Base::blocks_, Base::row, Base::thread, Base::turns_, Base::warpgroup_;
  static constexpr int kSums = S::kDepth / 2;

  // Members of QueryBlock for a thread's two rows; but logit is 14 - log2(e) logsumexp.
  struct Rows {
    float logit[2], delta[2], norm[2];
    float g_scale[2];
    float least_logit[2], least_out[2];
  };

  int64_t of_mask_ = 0;     // the head's mask
  int head_ = 0, row_ = 0;  // the thread's first row
  float s_[32], x_[32], sums_[kSums], dq_[kSums];
  float factor_[2] = {};     // of sums of dS K
  float factor_of_key_ = 0;  // of logits, without the keys' scale
  Rows rows_;
  Weights ds_;
  bool again_[2];  // rows to be recomputed

 public:
  __device__ __forceinline__ explicit QueryGradients(const Base& base) : Base(base) {
#pragma unroll
    for (int e = 0; e < 32; ++e) s_[e] = x_[e] = 0;
#pragma unroll
    for (int e = 0; e < kSums; ++e) sums_[e] = 0;
  }

  // Computes all tiles of queries, which come behind those of keys.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    while (true) {
      blocks_.wait_for_tile();
      if (blocks_.index() >= job_.all_tiles) break;
      compute(blocks_.index() - job_.all_key_tiles);
      blocks_.next_tile();
    }
  }

  __device__ __forceinline__ void compute(int index) {
    blocks_.begin(false);
    const Tile<false> tile(job_, index);
    begin(tile);
    if constexpr (S::kChunks == 1)
      add_ahead(tile.end);
    else
      add_in_turn(tile.end);
    store();
  }

 private:
  __device__ __forceinline__ const KeyBlock& about(int slot) const { return blocks_.keys(slot); }

  __device__ __forceinline__ void begin(const Tile<false>& tile) {
    const Problem& p = job_.g.p;
    const int of_warp = row();
    head_ = tile.head;
    row_ = tile.of_head * kTile + blocks_.half() * kRows + of_warp;
    const QueryBlock& from = blocks_.own_queries(job_, tile);
    of_mask_ = from.mask;
    factor_of_key_ = from.q_scale * job_.factor;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = of_warp + 8 * r;
      rows_.logit[r] = from.row_logit[row];
      rows_.delta[r] = from.row_delta[row];
      rows_.norm[r] = from.row_norm[row];
      rows_.g_scale[r] = from.row_g_scale[row];
      rows_.least_logit[r] = from.row_least_logit[row];
      rows_.least_out[r] = from.row_least_out[row];
      again_[r] = false;
    }
#pragma unroll
    for (int e = 0; e < kSums; ++e) dq_[e] = 0;
  }

  // S and dP of block j are under way: s becomes 2^14 P.
  __device__ __forceinline__ void weigh(int j) {
    const Problem& p = job_.g.p;
    const int key = j * kRows + column();
    // A factor below float32's range would make 0 of -Inf; sums of such a small factor don't matter.
    const float c = fmaxf(factor_of_key_ * about(blocks_.slot(1)).k_scale, 0x1p-126f);
    MaskOfBlock<MASKED ? 32 : 2> mask;
    if constexpr (MASKED) mask.load(p, of_mask_, row_, key);
    hopper::wait_products<1>();
    hopper::fence_registers(s_);
    if constexpr (MASKED) {
#pragma unroll
      for (int e = 0; e < 32; ++e) s_[e] = fmaf(s_[e], c, mask.x[e]);
    }
    const int first = row_ - thread() % 32 / 4;  // row of the warp
    if ((j + 1) * kRows > (p.causal ? min(first + 1, p.keys) : p.keys)) KeyLimits(p, row_).apply(s_, key);
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const float logit = rows_.logit[e / 2 % 2];
      s_[e] = exp2_approx(MASKED ? fmaf(at_most_zero(s_[e] + logit), kLog2E, 14) : fmaf(s_[e], c, logit));
    }
    hopper::fence_registers(s_);
  }

  // dP is under way: planes of dS, with a scale for each row. `last`: these are the tile's last scores.
  __device__ __forceinline__ void differentiate(int j, bool last) {
    const KeyBlock block = about(blocks_.slot(1));
    float f[2], d[2], unit[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float of_dp = rows_.g_scale[r] * block.v_scale;
      const float bound = fmaf(rows_.norm[r] * block.v_norm, of_dp, fabsf(rows_.delta[r]));
      const int exponent = weight_exponent(bound);
      const float h = split::power_of_two(-exponent);
      f[r] = of_dp * h;
      d[r] = rows_.delta[r] * -h;
      unit[r] = split::power_of_two(exponent - 14);
      factor_[r] = unit[r] * block.k_scale * job_.g.p.scale;
      again_[r] |=
          is_coarse(factor_of_key_ * block.k_scale, rows_.least_logit[r], block.v_scale, rows_.least_out[r], bound);
    }
    this->wait_for_scores(x_, last);
    blocks_.release(blocks_.slot(2));
#pragma unroll
    for (int e = 0; e < 32; ++e) x_[e] = s_[e] * fmaf(x_[e], f[e / 2 % 2], d[e / 2 % 2]);
    if constexpr (MASKED) {
      if (job_.g.mask) store_mask(j, unit);
    }
    ds_.split(x_);
  }

  __device__ __forceinline__ void store_mask(int j, const float (&unit)[2]) const {
    const Problem& p = job_.g.p;
    const int key = j * kRows + column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      if (row >= p.queries) continue;
      float* const to = job_.g.mask + (int64_t{head_} * p.queries + row) * p.keys + key;
#pragma unroll
      for (int e = 2 * r; e < 32; e += 4)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (key + e / 4 * 8 + i < p.keys) to[e / 4 * 8 + i] = x_[e + i] * unit[r];
    }
  }

  // Adds a block's sums. The block's slot can be filled anew.
  __device__ __forceinline__ void add(int slot) {
    hopper::fence_registers(sums_);
    ds_.fence();
    blocks_.release(slot);
    promote(dq_, sums_, factor_[0], factor_[1]);
  }

  // Waits for blocks of V and K, and issues S and dP.
  __device__ __forceinline__ void multiply_next() {
    blocks_.take();
    blocks_.take();
    multiply_along_depth<S>(s_, blocks_.own(0), blocks_.along_depth(blocks_.slot(1)), &about(blocks_.slot(1)).order);
    multiply_along_depth<S>(x_, blocks_.own(1), blocks_.along_depth(blocks_.slot(2)));
  }

  // Depth 64: S and dP of the next block are issued behind this one's dQ, which is added while they are computed.
  __device__ __forceinline__ void add_ahead(int blocks) {
    multiply_next();
    weigh(0);
#pragma unroll 1
    for (int j = 1; j < blocks; ++j) {
      differentiate(j - 1, false);
      turns_.begin();
      multiply_rows<S>(sums_, ds_, blocks_.across_depth(blocks_.slot(1)));
      multiply_next();
      turns_.end();
      hopper::wait_products<2>();
      add(blocks_.slot(3));
      hopper::fence_registers(dq_);
      this->keep_order();
      weigh(j);
    }
    differentiate(blocks - 1, true);
    add_last();
  }

  __device__ __forceinline__ void add_in_turn(int blocks) {
#pragma unroll 1
    for (int j = 0; j < blocks; ++j) {
      multiply_next();
      weigh(j);
      differentiate(j, j == blocks - 1);
      add_last();
    }
  }

  __device__ __forceinline__ void add_last() {
    turns_.begin();
    multiply_rows<S>(sums_, ds_, blocks_.across_depth(blocks_.slot(1)));
    turns_.end();
    hopper::wait_products<0>();
    add(blocks_.slot(1));
  }

  // Stores the warp's 16 rows, and computes some of them again.
  __device__ __forceinline__ void store() const {
    const Problem& p = job_.g.p;
    const int lane = thread() % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      if (job_.g.q.data && row < p.queries && !again_[r]) {
        float* const to = job_.g.q.matrix(head_).at(row, lane % 4 * 2);
#pragma unroll
        for (int e = 2 * r; e < kSums; e += 4)
          if (e / 4 * 8 < p.depth) hopper::store(to + e / 4 * 8, make_float2(dq_[e], dq_[e + 1]));
      }
      uint32_t left = __ballot_sync(~0u, again_[r] && row < p.queries && lane % 4 == 0);
#pragma unroll 1
      for (; left; left &= left - 1)
        recompute_query(job_, blocks_.queries_of_head(job_, head_), head_, row - lane / 4 + (__ffs(left) - 1) / 4);
    }
  }
};

}  // namespace sgemm::attention::backward
