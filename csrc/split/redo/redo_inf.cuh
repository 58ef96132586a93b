// Recomputes the refused elements of a tile's rows and columns that hold Inf.
//
// Idea:   only the products with Inf or NaN decide the value of such an element. So the block searches a row of A once
//         for all of its elements, and multiplies each Inf and NaN by B, a column per thread. A column of B is handled
//         the same way.
// Calls:  this is a separate function, so that the compiler's code for the rest of the kernel is the same as without
//         it.
// Bound:  reading the row; also reading B, if the row holds Inf everywhere and B's column has one sign.
#pragma once
#include <cmath>

#include "refused.cuh"

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

// Elements whose row and column both hold Inf or NaN stay refused. Precondition: there are no earlier pieces of k,
// which may hold Inf as well.
static __device__ __noinline__ void redo_inf(const Job& job, const Corner& tile, int t, RefusedTile& refused,
                                             InfMemory& memory) {
  const ElementMatrix a = matrix_of_a(job.p, tile.batch), b = matrix_of_b(job.p, tile.batch);
  const int64_t depth = job.depth(tile.batch);
  const auto redo_line = [&](bool of_b, int own) {
    const auto is_wanted = [&](int other) {
      const RowScale row_scale = refused.row_scales[!of_b][other];
      return refused.is_refused(of_b ? other : own, of_b ? own : other) && is_finite_row(row_scale);
    };
    bool some = false;
    for (int other = t % 32; other < kTile; other += 32) some = some || is_wanted(other);
    if (!__any_sync(~0u, some)) return;
    const bool wanted = is_wanted(t % kTile);
    const int64_t row = tile.row + (of_b ? 0 : own), col = tile.col + (of_b ? own : 0);
    const ElementPointer from_a = a.at(row, 0), from_b = b.at(0, col);
    const float sum = inf_product(of_b ? InfLine{from_b, from_a, b.row, a.col, a.row, depth}
                                       : InfLine{from_a, from_b, a.col, b.row, b.col, depth},
                                  t, wanted, memory);
    if (t >= kTile || !wanted) return;
    store_redone(job, tile.batch, row + (of_b ? t : 0), col + (of_b ? 0 : t), sum);
    refused.clear(of_b ? t : own, of_b ? own : t);
  };
#pragma unroll 1
  for (int first = 0; first < 2 * kTile; first += 32) {
    const RowScale row_scale = refused.row_scales[first / kTile][first % kTile + t % 32];
#pragma unroll 1
    for (uint32_t lines = __ballot_sync(~0u, is_inf_row(row_scale)); lines; lines &= lines - 1)
      redo_line(first >= kTile, first % kTile + __ffs(lines) - 1);
  }
  sync_consumers();
}

}  // namespace sgemm::split
