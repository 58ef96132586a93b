// Split-K reduction: adds up slices of k.
#pragma once
#include "epilogue.cuh"
#include "../gpu/dependent_launch.cuh"
#include "in_order.cuh"
#include "../gpu/launch_cluster.cuh"
#include "../problem/pieces.h"

namespace sgemm {

constexpr int kSumThreads = 256;

// The triangle of D for which slices have been computed. The diagonal belongs to both triangles.
enum class Triangle { kBoth, kUpper, kLower };

// Computes D = f(alpha * (the slices' sum) + beta * C). A block's threads form `groups`, each with a part of the slices
// for the same elements. Each part is added up first to last, then the parts' sums. Sums that are not finite are
// recomputed in order of k.
static __global__ void __launch_bounds__(kSumThreads)
    reduce_slices(const float* partials, int64_t slices, int groups, Triangle of_d, const __grid_constant__ Problem p) {
  __shared__ float sums[kSumThreads];
  const int elements = kSumThreads / groups, group = threadIdx.x / elements, element = threadIdx.x - group * elements;
  const int64_t count = p.m * p.n, x = int64_t{blockIdx.x} * elements + element, part = ceil_div(slices, groups);
  const int64_t i = count >> 32 ? x / p.n : static_cast<uint32_t>(x) / static_cast<uint32_t>(p.n), j = x - i * p.n;
  const int64_t begin = min(slices, group * part);
  const bool wanted = x < count && (of_d == Triangle::kBoth || (of_d == Triangle::kUpper ? i <= j : i >= j));
  int64_t left = wanted ? min(slices - begin, part) : 0;
  const float* from = partials + begin * count + x;
  wait_for_predecessor();
  float sum = 0;
  for (; left > 0; left -= kReadAtOnce) {
    float parts[kReadAtOnce];
#pragma unroll
    for (int r = 0; r < kReadAtOnce; ++r, from += count) parts[r] = r < left ? *from : 0.0f;
#pragma unroll
    for (int r = 0; r < kReadAtOnce; ++r) sum += parts[r];
  }
  if (groups > 1) {
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (group == 0)
      for (int g = 1; g < groups; ++g) sum += sums[g * elements + element];
  }
  const bool stores = group == 0 && wanted;
  float add = stores && p.beta != 0 ? *p.c.at(i, j) : 0.0f;
  if (!stores) return;
  if (!is_finite(p.k_before > 0 ? sum + add : sum)) {
    sum = in_order(p, 0, i, j);
    if (p.k_before > 0) add = 0;
  }
  *p.d.at(i, j) = finished(p, p.alpha * sum, &add);
}

// Returns the product whose slices of k are computed: plain sums, stored consecutively.
inline Problem product_of_slices(Problem p, float* partials) {
  p.d = {partials, p.m, p.n, p.n, 1, p.m * p.n};
  p.alpha = 1;
  p.beta = 0;
  p.activation = Activation::kNone;  // f and k_before apply to the sum
  p.k_before = 0;
  return p;
}

inline void launch_sum(const float* partials, int64_t slices, const Problem& p, const Context& context,
                       Triangle of_d = Triangle::kBoth) {
  const int groups = sum_groups(slices);
  launch(reduce_slices, ceil_div(p.m * p.n, kSumThreads / groups), kSumThreads, 0, 1, true, context.stream, partials,
         slices, groups, of_d, p);
}

// Calls `run` for all pieces. Slices that are added up in the workspace are stored consecutively in `sums`.
template <class Run>
void for_each_piece(const Problem& p, const Pieces& cut, void* sums, const Context& context, const Run& run) {
  if (cut.in_d) return for_each_piece(p, cut, run);
  for_each_piece(p, {cut.m, cut.n, p.k, 1}, [&](const Problem& part) {
    Problem whole = product_of_slices(part, static_cast<float*>(sums));
    int64_t count = 0;
    for_each_piece(whole, {part.m, part.n, cut.slice, 1}, [&](Problem slice) {
      slice.beta = 0;
      slice.k_before = 0;
      slice.d = whole.d;
      whole.d.data += part.m * part.n;
      for_each_piece(slice, cut, run);
      ++count;
    });
    launch_sum(static_cast<const float*>(sums), count, part, context);
  });
}

}  // namespace sgemm
