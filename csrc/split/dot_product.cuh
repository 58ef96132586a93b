// Elements of a product in float32.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "../problem/elements.h"

namespace sgemm::split {

// What a part of their products comes to. Those with Inf or NaN are apart, for they alone decide.
struct DotSums {
  float sum, of_specials;  // the latter is finite, and 0, unless there are some
};

// Quads that a lane reads of either operand at once, for one after the other, each would wait for memory; more of them
// are more instructions, which are in no cache either.
constexpr int kQuads = 4;

// A lane's quads, 128 of k apart, of which `left` lie ahead of the warp's first.
__device__ __forceinline__ void read_quads(float4 (&x)[kQuads], const ElementPointer& from, int64_t step, int64_t left,
                                           bool vector) {
  const int own = static_cast<int>(min(left, int64_t{128 * kQuads})) - threadIdx.x % 32 * 4;
  if (vector) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      x[i] = i * 128 < own ? *reinterpret_cast<const float4*>(from.data + i * 128) : float4{};
    return;
  }
  float elements[4 * kQuads];
  const auto place = [](int i) { return i / 4 * 128 + i % 4; };
  read_elements(
      elements, from, [&](int i) { return place(i) * step; }, [&](int i) { return place(i) < own; });
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    x[i] = make_float4(elements[4 * i], elements[4 * i + 1], elements[4 * i + 2], elements[4 * i + 3]);
}

// Whether an operand's k from `begin` to `end` can be read by quads.
__device__ __forceinline__ bool reads_quads(const ElementPointer& from, int64_t step, int64_t begin, int64_t end) {
  return from.elements == ElementType::kFloat32 && step == 1 && (end - begin) % 4 == 0 &&
         reinterpret_cast<uintptr_t>(from.data + begin) % 16 == 0;
}

// Of k from `begin` to `end`, by a warp; the same in all lanes.
static __device__ __noinline__ DotSums add_products(ElementPointer a, int64_t a_step, ElementPointer b, int64_t b_step,
                                                    int64_t begin, int64_t end) {
  const bool vector_a = reads_quads(a, a_step, begin, end), vector_b = reads_quads(b, b_step, begin, end);
  const auto add_up = [](float x) {
    for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
  };
  DotSums of_lane = {0, 0};
#pragma unroll 1
  for (int64_t q0 = begin; q0 < end; q0 += 128 * kQuads) {
    const int64_t q = q0 + threadIdx.x % 32 * 4;
    float4 x[kQuads], y[kQuads];
    read_quads(x, a + q * a_step, a_step, end - q0, vector_a);
    read_quads(y, b + q * b_step, b_step, end - q0, vector_b);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      sum = fmaf(x[i].w, y[i].w, fmaf(x[i].z, y[i].z, fmaf(x[i].y, y[i].y, fmaf(x[i].x, y[i].x, sum))));
    of_lane.sum += sum;
    if (!__any_sync(~0u, !isfinite(sum))) continue;
    const auto add_special = [&](float x, float y) {
      if (!isfinite(x) || !isfinite(y)) of_lane.of_specials += x * y;
    };
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      add_special(x[i].x, y[i].x);
      add_special(x[i].y, y[i].y);
      add_special(x[i].z, y[i].z);
      add_special(x[i].w, y[i].w);
    }
    // No product changes a NaN: of a row of Inf, its first products most often decide.
    if (__any_sync(~0u, isnan(of_lane.of_specials))) return {NAN, NAN};
  }
  return {add_up(of_lane.sum), add_up(of_lane.of_specials)};
}

// The element, by a warp, from the sums of all of k. One that overflows is added up in the order of k, for another
// order may overflow where that one doesn't.
static __device__ __noinline__ float add_in_order(ElementPointer a, int64_t a_step, ElementPointer b, int64_t b_step,
                                                  int64_t depth) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll 1
  for (int64_t q = 0; q < depth; q += 32) {
    const bool inside = q + lane < depth;
    const float x = inside ? a[(q + lane) * a_step] : 0, y = inside ? b[(q + lane) * b_step] : 0;
    for (int i = 0; i < 32; ++i) sum = fmaf(__shfl_sync(~0u, x, i), __shfl_sync(~0u, y, i), sum);
  }
  return sum;
}

__device__ __forceinline__ float whole_product(const ElementPointer& a, int64_t a_step, const ElementPointer& b,
                                               int64_t b_step, int64_t depth, const DotSums& sums) {
  if (!isfinite(sums.of_specials)) return sums.of_specials;
  return isfinite(sums.sum) ? sums.sum : add_in_order(a, a_step, b, b_step, depth);
}

// Both, by one warp.
__device__ __forceinline__ float dot_product(const ElementPointer& a, int64_t a_step, const ElementPointer& b,
                                             int64_t b_step, int64_t depth) {
  return whole_product(a, a_step, b, b_step, depth, add_products(a, a_step, b, b_step, 0, depth));
}

}  // namespace sgemm::split
