// Some of a tile's marked elements computed again, where an operand doesn't lie along k.
//
// Idea:   a dot product would read 32 bytes for each 4 that it needs. So both operands' steps of k come to shared
//         memory as for a whole tile (redo_panel.cuh), in whole lines, and each thread keeps one element's sum.
// Order:  as a whole tile's of 128 columns, where no groups share k.
// Bound:  the L2 cache, which delivers all of the tile's rows and columns.
#pragma once
#include "marks.cuh"
#include "redo_tile.cuh"

namespace sgemm::split {

constexpr uint32_t kSome = 128;  // at most: a whole tile takes about as long

// The elements, and the stages that fit beside them in BYTES.
template <class A, class B, int BYTES>
struct SomeMemory {
  static constexpr int kListBytes = kSome * sizeof(uint16_t);
  alignas(16) uint16_t list[kSome];  // places in the tile
  RedoStages<A, B, BYTES - kMarksBytes - kListBytes, 8> stages;
};

// Up to kSome elements, whose rows and columns hold no Inf. What overflows stays marked.
template <class Shape, bool A_ALONG_M, bool B_ALONG_N, int BYTES>
static __device__ __noinline__ void redo_some(const Job& job, const Corner& tile, int t, Marks& marks, char* rest) {
  using PanelA = RedoPanel<kTile, 1, !A_ALONG_M>;
  using PanelB = RedoPanel<Shape::kCols, 1, !B_ALONG_N>;
  using Memory = SomeMemory<PanelA, PanelB, BYTES>;
  Memory& memory = *reinterpret_cast<Memory*>(rest);
  sync_consumers();  // all have read the counts, and what was here before
  if (t == 0) marks.counts[0] = 0;
  sync_consumers();
#pragma unroll 1
  for (int word = t; word < kTile * kTile / 32; word += kConsumers)
#pragma unroll 1
    for (uint32_t bits = marks.finite(word); bits; bits &= bits - 1)
      memory.list[atomicAdd(&marks.counts[0], 1u)] = static_cast<uint16_t>(word * 32 + __ffs(bits) - 1);
  sync_consumers();
  const bool owns = t < marks.counts[0];
  const int place = owns ? memory.list[t] : 0, i = place / kTile, j = place % kTile;
  const int64_t depth = job.depth(tile.batch);
  PanelA a(job.a, tile.batch, tile.row, depth, t);
  PanelB b(job.b, tile.batch, tile.col, depth, t);
  const bool busy = __any_sync(~0u, owns);
  float total = 0, part = 0;
  memory.stages.each_step(a, b, depth, [&](const auto& stage, int step, bool last) {
    if (!busy) return;
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < kStep; ++k) sum = fmaf(stage.a[PanelA::place(i, 0, k)], stage.b[PanelB::place(j, 0, k)], sum);
    part = step % kRedoChains == 0 ? sum : part + sum;
    if (step % kRedoChains == kRedoChains - 1 || last) total += part;
  });
  if (owns && isfinite(total) && store_redone(job, tile.batch, tile.row + i, tile.col + j, total)) marks.clear(i, j);
}

}  // namespace sgemm::split
