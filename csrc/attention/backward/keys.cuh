// dK and dV: a warpgroup owns 64 keys. Rows of its scores are keys, columns are queries.
#pragma once
#include "../softmax.cuh"
#include "pipeline.cuh"
#include "products.cuh"
#include "recompute.cuh"

namespace sgemm::attention::backward {

template <class Blocks, bool MASKED>
class KeyGradients : public Consumer<Blocks> {
  using Base = Consumer<Blocks>;
  using S = typename Blocks::Shape;
  using Base::column, Base::job_, Base::blocks_, Base::row, Base::thread, Base::turns_, Base::warpgroup_;
  static constexpr int kChunks = S::kChunks;

  float s_[32], x_[32], sums_[32], more_sums_[32];
  float dk_[kChunks][32], dv_[kChunks][32];
  Weights p_, ds_;
  // The powers of two that all weights of a block were multiplied by, of both keys, and dS besides: a byte each.
  uint32_t scaling_ = 0;

 public:
  __device__ __forceinline__ explicit KeyGradients(const Base& base) : Base(base) {
#pragma unroll
    for (int e = 0; e < 32; ++e) s_[e] = x_[e] = sums_[e] = more_sums_[e] = 0;
  }

  // Computes all tiles of keys.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    while (true) {
      blocks_.wait_for_tile();
      if (blocks_.index() >= job_.all_key_tiles) break;
      compute();
      blocks_.next_tile();
    }
  }

  __device__ __forceinline__ void compute() {
    blocks_.begin(true);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int e = 0; e < 32; ++e) dk_[c][e] = dv_[c][e] = 0;
    if (thread() == 0) blocks_.again() = 0;
    const Tile<true> tile(job_, blocks_.index());
    const int blocks = (tile.end - tile.first) * job_.share;
    if constexpr (kChunks == 1)
      add_ahead(blocks);
    else
      add_in_turn(blocks);
    store();
  }

 private:
  __device__ __forceinline__ const QueryBlock& about(int slot) const { return blocks_.queries(slot); }
  __device__ __forceinline__ const KeyBlock& own() const { return blocks_.own_keys(); }

  __device__ __forceinline__ void multiply_queries(int slot) {
    multiply_along_depth<S>(s_, blocks_.own(0), blocks_.along_depth(slot), &own().order);
  }

  // S is under way. Issues dP for the next block of dO. With a mask, s becomes logits first.
  __device__ __forceinline__ void multiply_gradients() {
    blocks_.take();
    const int g = blocks_.slot(1);
    if constexpr (MASKED) {
      const QueryBlock& block = about(g);
      if (job_.g.p.mask.kind == MaskKind::kFloat)
        load_mask<float>(block);
      else
        load_mask<uint8_t>(block);
    }
    if constexpr (MASKED || kChunks == 1) {
      hopper::wait_products<0>();
      hopper::fence_registers(s_);
    }
    if constexpr (MASKED) {
      const float c = factor_of(about(g));
#pragma unroll
      for (int e = 0; e < 32; ++e) s_[e] = fmaf(s_[e], c, x_[e]);
    }
    multiply_along_depth<S>(x_, blocks_.own(1), blocks_.along_depth(g));
  }

  // Returns the factor that turns sums into logits. A factor below float32's range would make 0 of -Inf; sums of such a
  // small factor don't matter.
  __device__ __forceinline__ float factor_of(const QueryBlock& block) const {
    return fmaxf(block.q_scale * own().k_scale * job_.factor, 0x1p-126f);
  }

  // S and dP are under way: s becomes 2^14 P times dO's row factors. The queries are those of slot `g`.
  __device__ __forceinline__ void weigh(int g) {
    const QueryBlock& block = about(g);
    const float c = factor_of(block);
    const int first = own().first - block.first;  // key less query
    hopper::wait_products<1>();
    hopper::fence_registers(s_);
    if (job_.g.p.causal && first + kRows > 0) {
      const int before = first + row() - column();
#pragma unroll
      for (int e = 0; e < 32; ++e)
        if (before + e / 2 % 2 * 8 > e / 4 * 8 + e % 2) s_[e] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 logit = *reinterpret_cast<const float2*>(&block.logit[column() + i * 8]);
      if constexpr (MASKED) {
        const float2 shift = __half22float2(*reinterpret_cast<const __half2*>(&block.shift[column() + i * 8]));
#pragma unroll
        for (int e = 4 * i; e < 4 * i + 4; ++e)
          s_[e] =
              exp2_approx(fmaf(at_most_zero(s_[e] + (e % 2 ? logit.y : logit.x)), kLog2E, e % 2 ? shift.y : shift.x));
      } else {
#pragma unroll
        for (int e = 4 * i; e < 4 * i + 4; ++e) s_[e] = exp2_approx(fmaf(s_[e], c, e % 2 ? logit.y : logit.x));
      }
    }
    enlarge();
    hopper::fence_registers(s_);
  }

  // A key may have tiny weights only. They would lose accuracy in planes, so a row's largest weight becomes 2^13 at
  // least. This is rare, and a row whose threads all have weights above 2^-3 keeps its scale.
  __device__ __forceinline__ void enlarge() {
    uint32_t most[2] = {};  // bits
#pragma unroll
    for (int e = 0; e < 32; ++e) most[e / 2 % 2] = max(most[e / 2 % 2], __float_as_uint(s_[e]));
    scaling_ = 0;
    if (__any_sync(~0u, min(most[0], most[1]) < __float_as_uint(0.125f))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        most[r] = max(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = max(most[r], __shfl_xor_sync(~0u, most[r], 2));
        if (most[r] == 0 || most[r] >= split::kInfinity) continue;
        const int exponent = min(max(13 + 127 - static_cast<int>(most[r] >> 23), 0), 126);
        multiply_row(s_, r, exponent);
        scaling_ |= exponent << 8 * r;
      }
    }
  }

  // Multiplies a key's row by 2^exponent.
  __device__ __forceinline__ static void multiply_row(float (&x)[32], int r, int exponent) {
    const float factor = split::power_of_two(exponent);
#pragma unroll
    for (int e = 2 * r; e < 32; e += 4) {
      x[e] *= factor;
      x[e + 1] *= factor;
    }
  }

  // x becomes the mask of the queries in slot `g`; elements outside are any.
  template <class Element>
  __device__ __forceinline__ void load_mask(const QueryBlock& block) {
    const Problem& p = job_.g.p;
    const Element* const first = static_cast<const Element*>(p.mask.data) + block.mask;
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      const int r = n / 16, i = n % 16 / 2, j = n % 2;
      if (n % 8 == 0) this->keep_order();  // else ptxas holds all addresses at the same time
      const int key = min(own().first + row() + 8 * r, hopper::opaque(p.keys) - 1);
      const int query = min(block.first + column() + i * 8 + j, hopper::opaque(p.queries) - 1);
      x_[4 * i + 2 * r + j] = mask_value(first[key * p.mask.key + query * p.mask.row]);
    }
  }

  // dP is under way: x becomes dS, scaled for planes. `last`: these are the tile's last scores.
  __device__ __forceinline__ void differentiate(int g, bool last) {
    const QueryBlock& block = about(g);
    const KeyBlock& key = own();
    const float bound = bound_of(block, key.v_norm), h = split::power_of_two(-weight_exponent(bound));
    const float of_dp = block.g_scale * key.v_scale * h;
    if (is_coarse(block.q_scale * key.k_scale * job_.factor, block.least_logit, key.v_scale, block.least_out, bound))
      blocks_.again() = 1;
    this->wait_for_scores(x_, last);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 delta = *reinterpret_cast<const float2*>(&block.delta[column() + i * 8]);
      const float2 d = make_float2(delta.x * -h, delta.y * -h);
#pragma unroll
      for (int e = 4 * i; e < 4 * i + 4; ++e) x_[e] = s_[e] * fmaf(x_[e], of_dp, e % 2 ? d.y : d.x);
    }
    if (own().spread) enlarge_rows(block);
  }

  // The bound of a key with a small row of V may be far below its block's. Its row of x grows.
  __device__ __forceinline__ void enlarge_rows(const QueryBlock& block) {
    const float* const norms = blocks_.own_norms(job_, Tile<true>(job_, blocks_.index()));
    const int of_block = weight_exponent(bound_of(block, own().v_norm));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int of_row = weight_exponent(bound_of(block, norms[row() + 8 * r]));
      const int exponent = min(max(of_block - of_row, 0), 126);
      multiply_row(x_, r, exponent);
      scaling_ |= exponent << 8 * (2 + r);
    }
  }
  // A bound of |dS|, for keys with this |V| in units of v_scale. The largest weight of a key, times the scale of its
  // row of dO, may be enlarged to 1. So the bound has rows of dO, and delta, by their own scales.
  __device__ __forceinline__ float bound_of(const QueryBlock& block, float norm) const {
    return fmaf(block.most_norm * norm, block.g_scale * own().v_scale, block.most_delta);
  }
  // The factors of sums of dS Q and of P dO.
  __device__ __forceinline__ float key_factor(int g) const {
    const QueryBlock& block = about(g);
    const int exponent = weight_exponent(bound_of(block, own().v_norm));
    return split::power_of_two(exponent - 14) * block.q_scale * fabsf(job_.g.p.scale);
  }
  __device__ __forceinline__ float value_factor(int g) const { return about(g).g_scale * 0x1p-14f; }

  // Depth 64: S of the next block is issued behind this one's dV and dK, which are added while it is computed.
  __device__ __forceinline__ void add_ahead(int blocks) {
    blocks_.take();
    multiply_queries(blocks_.slot(1));
    multiply_gradients();
    weigh(blocks_.slot(1));
#pragma unroll 1
    for (; blocks > 1; --blocks) {
      differentiate(blocks_.slot(1), false);
      turns_.begin();
      p_.split(s_);
      multiply_rows<S>(more_sums_, p_, blocks_.across_depth(blocks_.slot(1)));
      ds_.split(x_);
      multiply_rows<S>(sums_, ds_, blocks_.across_depth(blocks_.slot(2)));
      blocks_.take();
      multiply_queries(blocks_.slot(1));
      turns_.end();
      hopper::wait_products<2>();
      hopper::fence_registers(more_sums_);
      p_.fence();
      const float of_keys = key_factor(blocks_.slot(2));
      finish_values(blocks_.slot(2), dv_[0], more_sums_);
      hopper::fence_registers(dv_[0]);
      this->keep_order();
      hopper::wait_products<1>();
      hopper::fence_registers(sums_);
      ds_.fence();
      blocks_.release(blocks_.slot(3));
      add_keys(dk_[0], of_keys);
      hopper::fence_registers(dk_[0]);
      multiply_gradients();
      weigh(blocks_.slot(1));
    }
    differentiate(blocks_.slot(1), true);
    turns_.begin();
    p_.split(s_);
    multiply_rows<S>(more_sums_, p_, blocks_.across_depth(blocks_.slot(1)));
    ds_.split(x_);
    multiply_rows<S>(sums_, ds_, blocks_.across_depth(blocks_.slot(2)));
    turns_.end();
    hopper::wait_products<0>();
    hopper::fence_registers(more_sums_);
    p_.fence();
    hopper::fence_registers(sums_);
    ds_.fence();
    const float of_keys = key_factor(blocks_.slot(1));
    finish_values(blocks_.slot(1), dv_[0], more_sums_);
    add_keys(dk_[0], of_keys);
    blocks_.release(blocks_.slot(2));
  }

  // Depth 128: registers hold one accumulator of 64 columns beside dK and dV.
  __device__ __forceinline__ void add_in_turn(int blocks) {
#pragma unroll 1
    for (; blocks > 0; --blocks) {
      blocks_.take();
      multiply_queries(blocks_.slot(1));
      multiply_gradients();
      weigh(blocks_.slot(1));
      differentiate(blocks_.slot(1), blocks == 1);
      turns_.begin();
      ds_.split(x_);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        multiply_rows<S>(sums_, ds_, blocks_.across_depth(blocks_.slot(2)), c);
        if (c == 0) turns_.end();
        if (c == kChunks - 1) {  // under the products with dS
          p_.split(s_);
          p_.fence();
        }
        hopper::wait_products<0>();
        hopper::fence_registers(sums_);
        ds_.fence();
        if (c == kChunks - 1) blocks_.release(blocks_.slot(2));
        const float factor = key_factor(blocks_.slot(1));
        add_keys(dk_[c], factor);
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        multiply_rows<S>(sums_, p_, blocks_.across_depth(blocks_.slot(1)), c);
        hopper::wait_products<0>();
        hopper::fence_registers(sums_);
        p_.fence();
        const float factor = value_factor(blocks_.slot(1));
        if (c == kChunks - 1) blocks_.release(blocks_.slot(1));
        add_values(dv_[c], sums_, factor);
      }
    }
  }

  // Add a block's sums to dK and dV.
  __device__ __forceinline__ void add_keys(float (&dk)[32], float factor) const {
    float factors[2] = {factor, factor};
    if (scaling_)
#pragma unroll
      for (int r = 0; r < 2; ++r) factors[r] *= shrinking(r) * shrinking(2 + r);
    promote(dk, sums_, factors[0], factors[1]);
  }
  __device__ __forceinline__ void add_values(float (&dv)[32], const float (&sums)[32], float factor) const {
    float factors[2] = {factor, factor};
    if (scaling_)
#pragma unroll
      for (int r = 0; r < 2; ++r) factors[r] *= shrinking(r);
    promote(dv, sums, factors[0], factors[1]);
  }
  __device__ __forceinline__ float shrinking(int byte) const {
    return split::power_of_two(-static_cast<int>(scaling_ >> 8 * byte & 0xff));
  }

  // Adds a block's sums to dV. The block's slot can be filled anew.
  __device__ __forceinline__ void finish_values(int slot, float (&dv)[32], const float (&sums)[32]) {
    const float factor = value_factor(slot);
    blocks_.release(slot);
    add_values(dv, sums, factor);
  }

  __device__ __forceinline__ void store() const {
    const Tile<true> tile(job_, blocks_.index());
    const int first = tile.of_head * kTile + blocks_.half() * kRows + thread() / 32 * 16;
    hopper::sync_some(4 + warpgroup_, 128);  // all have seen whether it is coarse
    if (blocks_.again()) {
      const QueryBlock* const queries = blocks_.queries_of_head(job_, tile.head * job_.share);
#pragma unroll 1
      for (int key = first; key < min(first + 16, job_.g.p.keys); ++key) recompute_key(job_, queries, tile.head, key);
      return;
    }
    const Matrix to_k = job_.g.k.matrix(tile.head), to_v = job_.g.v.matrix(tile.head);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first + thread() % 32 / 4 + 8 * r;
      if (key >= job_.g.p.keys) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int e = 2 * r; e < 32; e += 4) {
          const int at = c * 64 + e / 4 * 8;
          if (at < to_k.cols) hopper::store(to_k.at(key, at + column()), make_float2(dk_[c][e], dk_[c][e + 1]));
          if (at < to_v.cols) hopper::store(to_v.at(key, at + column()), make_float2(dv_[c][e], dv_[c][e + 1]));
        }
    }
  }
};

}  // namespace sgemm::attention::backward
