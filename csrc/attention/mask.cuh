// Elements of masks, as what they add to logits.
#pragma once
#include <cuda_runtime.h>

#include "attention.h"

namespace sgemm::attention {

// Returns what an element of a mask adds to a logit.
__device__ __forceinline__ float mask_value(float x) { return x; }
__device__ __forceinline__ float mask_value(uint8_t x) { return x ? 0 : -INFINITY; }

// Returns what a key's element of the mask adds to a logit, 0 without a mask.
__device__ __forceinline__ float mask_at(const Problem& p, int64_t of_row, int key) {
  if (p.mask.kind == MaskKind::kNone) return 0;
  const int64_t at = of_row + key * p.mask.key;
  if (p.mask.kind == MaskKind::kFloat) return mask_value(static_cast<const float*>(p.mask.data)[at]);
  return mask_value(static_cast<const uint8_t*>(p.mask.data)[at]);
}

// A thread's elements of a block's mask.
template <int N>
struct MaskOfBlock {
  float x[N];

  // `offset`: of the head; `row`: the thread's first row; `key`: its first key. Elements outside are any.
  __device__ __forceinline__ void load(const attention::Problem& p, int64_t offset, int row, int key) {
    if (p.mask.kind == MaskKind::kFloat)
      load_pairs<float2>(p, offset, row, key);
    else
      load_pairs<uchar2>(p, offset, row, key);
  }

 private:
  template <class Pair>
  __device__ __forceinline__ void load_pairs(const attention::Problem& p, int64_t offset, int row, int key) {
    using Element = decltype(Pair::x);
    const int64_t last = p.queries - 1, apart = p.mask.key;
    const Element* const first = static_cast<const Element*>(p.mask.data) + offset + key * apart;
    const Element* const rows[2] = {first + min(int64_t{row}, last) * p.mask.row,
                                    first + min(row + int64_t{8}, last) * p.mask.row};
    if (p.mask.in_pairs && key + 2 * N <= p.keys) {
#pragma unroll
      for (int e = 0; e < N; e += 2) {
        const Pair pair = *reinterpret_cast<const Pair*>(rows[e / 2 % 2] + e / 4 * 8);
        x[e] = mask_value(pair.x);
        x[e + 1] = mask_value(pair.y);
      }
      return;
    }
    const int left = p.keys - key;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const int at = e / 4 * 8 + e % 2;
      x[e] = mask_value(at < left ? rows[e / 2 % 2][at * apart] : Element{});
    }
  }
};

}  // namespace sgemm::attention
