// The product of a row that holds Inf with the lines of the other operand.
//
// Idea:   only the products with Inf or NaN decide the value of such an element. So the block searches a row of A once
//         for all of its elements, and multiplies each Inf and NaN by B, a column per thread. A column of B is handled
//         the same way.
// Bound:  reading the row; also reading B, if the row holds Inf everywhere and B's column has one sign.
#pragma once
#include <cmath>

#include "../../gpu/warpgroups.cuh"
#include "../../problem/elements.h"
#include "../plan/sizes.h"

namespace sgemm::split {

constexpr int kInfPart = 8 * kConsumers;  // k that is read at once: reads one at a time would each wait for memory

struct InfMemory {
  float x[kInfPart];                 // a part of the row
  uint32_t specials[kInfPart / 32];  // a bit for each Inf and NaN in x
  float sums[kTile];                 // sums of the second half of the threads
};

// A row of A or a column of B that holds Inf, and the operand that multiplies it.
struct InfLine {
  ElementPointer x, others;  // at the first k
  int64_t x_step, others_step, apart, depth;
};

// Multiplies the Inf and NaN of line x by line t of the other operand, and returns the sum in the first kTile threads.
// The two halves of the threads take 32 of k in turn. Threads whose line isn't `wanted` skip the products.
__device__ __forceinline__ float inf_product(const InfLine& line, int t, bool wanted, InfMemory& memory) {
  constexpr int kAtOnce = 4;
  const ElementPointer other = line.others + t % kTile * line.apart;
  float sum = 0;
#pragma unroll 1
  for (int64_t q0 = 0; q0 < line.depth; q0 += kInfPart) {
    float x[kInfPart / kConsumers];
#pragma unroll
    for (int i = 0; i < kInfPart / kConsumers; ++i) {
      const int64_t q = q0 + i * kConsumers + t;
      x[i] = q < line.depth ? line.x[q * line.x_step] : 0.0f;
    }
    sync_consumers();
#pragma unroll
    for (int i = 0; i < kInfPart / kConsumers; ++i) {
      memory.x[i * kConsumers + t] = x[i];
      const uint32_t specials = __ballot_sync(~0u, !isfinite(x[i]));
      if (t % 32 == 0) memory.specials[(i * kConsumers + t) / 32] = specials;
    }
    sync_consumers();
#pragma unroll 1
    for (int entry = t / kTile; entry < kInfPart / 32; entry += kConsumers / kTile) {
#pragma unroll 1
      for (uint32_t left = memory.specials[entry]; left;) {
        if (__all_sync(~0u, !wanted || isnan(sum))) break;  // no product changes a NaN
        float products[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int place = entry * 32 + __ffs(left) - 1;
          products[i] = left && wanted ? memory.x[place] * other[(q0 + place) * line.others_step] : 0.0f;
          left &= left - 1;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) sum += products[i];
      }
    }
  }
  if (t >= kTile) memory.sums[t - kTile] = sum;
  sync_consumers();
  return sum + memory.sums[t % kTile];
}

}  // namespace sgemm::split
