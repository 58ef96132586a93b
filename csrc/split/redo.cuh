// The redo: elements that the guard marked are computed again from the original operands.
//
// Idea:   a block's consumers do this behind all its tiles; nothing happens if none has a mark. A tile with many marked
//         elements is computed as a whole (redo_tile.cuh). A few elements are dot products, each of a warp; and where
//         these would read across lines, some are computed by a thread each (redo_some.cuh).
// Order:  where neighbours may decide nothing (Job::batch_invariant), an element alone is added up in the order of a
//         whole tile's.
// Inf:    a row that holds Inf has no scale; its elements come from its products with Inf (redo_inf.cuh). A dot product
//         that overflows is added up in the order of k, for another order may overflow where that one doesn't.
#pragma once
#include "dot_product.cuh"
#include "redo_inf.cuh"
#include "redo_some.cuh"
#include "redo_tile.cuh"
#include "redone.cuh"

namespace sgemm::split {

// At most so many elements are dot products, for more take longer than
constexpr uint32_t kFew = 16;          // redo_some()
constexpr uint32_t kFewAlongK = 192;   // redo_tile(), where both operands lie along k
constexpr uint32_t kFewInParts = 128;  // redo_tile(), where they are redo_in_parts()

// Each thread reads the masks that it wrote. Returns whether there are any: else the tile's words weren't written.
template <class Shape>
__device__ __forceinline__ bool read_marks(const Job& job, int index, uint32_t rank, int t, Marks& marks) {
  const uint32_t* const of_warps = job.marks + (int64_t{index} * 4 + rank) * 8;
  if (!__any_sync(~0u, of_warps[t % 8])) return false;
  sync_consumers();  // the tile before is done
  for (int i = t; i < kTile * kTile / 32; i += kConsumers) marks.bits[0][i] = 0;
  static_assert(kConsumers == 2 * kTile);
  const uint32_t word = job.words[int64_t{index} * 2 * kTile + t], infs = __ballot_sync(~0u, is_inf_row(word));
  marks.words[0][t] = word;
  if (t % 32 == 0) marks.inf_lines[0][t / 32] = infs;
  sync_consumers();
  const uint32_t mine = of_warps[t / 32];
#pragma unroll 1
  for (int slot = 0; slot < Shape::kSlots; ++slot) {
    if (!(mine >> slot & 1)) continue;
    const uint32_t mask = job.masks[(int64_t{index} * Shape::kSlots + slot) * kConsumers + t];
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const uint32_t of_row = __ballot_sync(~0u, mask >> i & 1);
      if (t % 32 == i) marks.bits[marked_row<Shape>(t, i)][marked_col<Shape>(t, slot) / 32] |= of_row;
    }
  }
  sync_consumers();
  return true;
}

// How many elements are marked: all of them, and those whose row and column hold no Inf.
struct MarkCounts {
  uint32_t all, finite;
};
__device__ __forceinline__ MarkCounts count_marks(Marks& marks, int t) {
  if (t < 2) marks.counts[t] = 0;
  sync_consumers();
#pragma unroll 1
  for (int i = t; i < kTile * kTile / 32; i += kConsumers) {
    const uint32_t bits = marks.bits[0][i];
    if (bits == 0) continue;
    atomicAdd(&marks.counts[0], __popc(bits));
    atomicAdd(&marks.counts[1], __popc(marks.finite(i)));
  }
  sync_consumers();
  return {marks.counts[0], marks.counts[1]};
}

// An element as redo_tile() computes it where neighbours may decide nothing, by a warp, whose lanes have a sum of
// kStep products each: lane 2 i + g has group g's of the i-th 64 of k. False, and nothing stored, where that leaves it
// marked.
static __device__ __noinline__ bool redo_in_parts(const Job& job, int batch, int64_t row, int64_t col) {
  const ElementMatrix a = matrix_of_a(job.p, batch), b = matrix_of_b(job.p, batch);
  const ElementPointer from_a = a.at(row, 0), from_b = b.at(0, col);
  const int64_t depth = job.depth(batch);
  const int lane = threadIdx.x % 32;
  using R = RedoShape<kRedoCols>;
  static_assert(R::kGroups == 2);
  constexpr int kOfSum = R::kGroups * kStep, kSums = 32 / R::kGroups;  // of k; of a round
  constexpr int kAtOnce = 8;                                           // reads
  float total = 0;
#pragma unroll 1
  for (int64_t q0 = 0; q0 < depth; q0 += kSums * kOfSum) {
    float part = 0;
#pragma unroll 1
    for (int i = 0; i < kStep; i += kAtOnce) {
      const int in_sum = i / R::kDepth * kStep + lane % R::kGroups * R::kDepth + i % R::kDepth;
      const int64_t q = q0 + lane / R::kGroups * kOfSum + in_sum;
      float x[kAtOnce], y[kAtOnce];
      const auto inside = [&](int e) { return q + e < depth; };
      read_elements(
          x, from_a, [&](int e) { return (q + e) * a.col; }, inside);
      read_elements(
          y, from_b, [&](int e) { return (q + e) * b.row; }, inside);
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) part = fmaf(x[e], y[e], part);
    }
    const int sums = static_cast<int>(min(ceil_div(depth - q0, kOfSum), int64_t{kSums}));
    float group = 0;
#pragma unroll 1
    for (int i = 0; i < sums; ++i) {
      const float next = __shfl_sync(~0u, part, i * R::kGroups + lane % R::kGroups);
      group = i % kRedoChains == 0 ? next : group + next;
      if (i % kRedoChains != kRedoChains - 1 && i + 1 < sums) continue;
      total = q0 == 0 && i < kRedoChains ? group : total + group;
    }
  }
  total += __shfl_xor_sync(~0u, total, 1);
  const bool stores = lane == 0 && isfinite(total);
  return __any_sync(~0u, stores && store_redone(job, batch, row, col, total));
}

// The warps take elements in turn, or groups of `sharers` have one each, of which a warp adds up a part of k. Where C
// is the sum of earlier pieces of k, they are computed from the first of these on.
__device__ __forceinline__ void redo_elements(const Job& job, const Corner& tile, int t, const Marks& marks,
                                              int sharers, DotSums (&of_warps)[kConsumers / 32]) {
  const ElementMatrix a = matrix_of_a(job.p, tile.batch), b = matrix_of_b(job.p, tile.batch);
  const int64_t before = job.p.k_before, depth = before + job.depth(tile.batch);
  constexpr int kWarps = kConsumers / 32;
  const int warp = t / 32, lane = t % 32;
  const int64_t share = ceil_div(depth, sharers * 32) * 32, begin = warp % sharers * share;
#pragma unroll 1
  for (bool finishes = sharers == 1;; finishes = true) {
    int next = 0;
#pragma unroll 1
    for (int first = 0; first < kTile * kTile / 32; first += 32) {
      const uint32_t own = marks.bits[0][first + lane];
      for (uint32_t words = __ballot_sync(~0u, own); words; words &= words - 1) {
        const int word = __ffs(words) - 1;
        for (uint32_t bits = __shfl_sync(~0u, own, word); bits; bits &= bits - 1) {
          const int turn = next++;
          if (finishes ? turn % kWarps != warp : turn != warp / sharers) continue;
          const int i = first + word;
          const int64_t row = tile.row + i * 32 / kTile, col = tile.col + i * 32 % kTile + __ffs(bits) - 1;
          if (job.batch_invariant && redo_in_parts(job, tile.batch, row, col)) continue;
          const ElementPointer from_a = a.at(row, -before), from_b = b.at(-before, col);
          DotSums sums = {0, 0};
          if (finishes && sharers > 1)
            for (const DotSums* x = &of_warps[turn * sharers]; x < &of_warps[(turn + 1) * sharers]; ++x)
              sums = {sums.sum + x->sum, sums.of_specials + x->of_specials};
          else
            sums = add_products(from_a, a.col, from_b, b.row, begin, min(begin + share, depth));
          if (!finishes) {
            of_warps[warp] = sums;
            continue;
          }
          const float sum = whole_product(from_a, a.col, from_b, b.row, depth, sums);
          if (lane == 0) store_whole(job, tile.batch, row, col, sum);
        }
      }
    }
    if (finishes) return;
    sync_consumers();
  }
}

// How many warps share each of `count` elements, so that none is idle.
__device__ __forceinline__ int sharers_of(const Job& job, uint32_t count) {
  int sharers = job.batch_invariant ? 1 : kConsumers / 32;
  while (sharers > 1 && sharers * count > kConsumers / 32) sharers /= 2;
  return sharers;
}

// The marked elements of a tile that block `rank` of a cluster of `blocks` finished. `t` counts the consumers' threads;
// `memory` is BYTES of the ring, which has been used up.
template <class Shape, bool A_ALONG_M, bool B_ALONG_N, int BYTES>
__device__ __forceinline__ void redo(const Job& job, int index, uint32_t rank, uint32_t blocks, int t, char* memory) {
  Marks& marks = *reinterpret_cast<Marks*>(memory);
  char* const rest = memory + kMarksBytes;
  if (!read_marks<Shape>(job, index, rank, t, marks)) return;
  MarkCounts count = count_marks(marks, t);
  const TileIndex at = tile_at(job, index);
  const Corner tile = {at.batch, int64_t{at.row} * Shape::kRows, int64_t{at.col} * Shape::kCols};
  count_redone(redone_elements, t == 0 ? count.all : 0);
  const bool across = (A_ALONG_M || B_ALONG_N) && !job.batch_invariant;
  const uint32_t some = job.batch_invariant ? kFewInParts : across ? kSome : kFewAlongK;
  count_redone(redone_tiles, t == 0 && count.finite > some);
  if (count.finite > some) {
    redo_tile<Shape, A_ALONG_M, B_ALONG_N, BYTES>(job, tile, rank, blocks, t, marks, rest);
    count = count_marks(marks, t);
  } else if (across && count.finite > kFew) {
    redo_some<Shape, A_ALONG_M, B_ALONG_N, BYTES>(job, tile, t, marks, rest);
    count = count_marks(marks, t);
  }
  if (count.all > count.finite) {
    redo_inf(job, tile, t, marks, *reinterpret_cast<InfMemory*>(rest));
    count = count_marks(marks, t);
  }
  if (count.all)
    redo_elements(job, tile, t, marks, sharers_of(job, count.all),
                  *reinterpret_cast<DotSums(*)[kConsumers / 32]>(rest));
}

}  // namespace sgemm::split
