// A tile's marked elements computed again in float32, with all of their neighbours.
//
// Idea:   outer products on the CUDA cores: a step of k of both operands comes to shared memory, copied ahead of its
//         products, and each thread keeps 8 x 8 sums. Where a block has fewer of a tile's columns, groups of its
//         threads share each step's k. No scales and no second test: float32's own range.
// Order:  a thread's sums of 32 of k are added up by eight, and these to the ones before: each adds to what is little
//         larger. The groups' sums are added up last.
// Block:  of a tile that a cluster's blocks finished in parts, each computes the columns of its own part, all of k.
// Calls:  a function of its own, so that the kernels in which it may be needed are what they would be without it.
// Bound:  the FFMA units.
#pragma once
#include "marks.cuh"
#include "redo_stages.cuh"

namespace sgemm::split {

constexpr int kRedoCols = 64;   // at a time, where all tiles have to have one order of sums (Job::batch_invariant)
constexpr int kRedoChains = 8;  // sums of kStep products, that are added up before they are added to the others

// How the threads share 128 rows x COLS columns: a thread has 8 x 8 of them. Shared memory serves a 16-byte read to
// half a warp at once where pairs of lanes want the same: lanes 2 i and 2 i + 1 share the side of which the warp reads
// more.
template <int COLS>
struct RedoShape {
  static constexpr int kOwn = 8, kSums = kOwn * kOwn;
  static constexpr int kThreads = kTile * COLS / kSums, kGroups = kConsumers / kThreads;   // that share k
  static constexpr int kDepth = kStep / kGroups;                                           // of a step, a group's
  static constexpr int kAcross = COLS / kOwn < 8 ? COLS / kOwn : 8, kDown = 32 / kAcross;  // lanes of a warp
  static constexpr int kFewer = kAcross < kDown ? kAcross : kDown;
  static constexpr int kWarpsAcross = COLS / kOwn / kAcross;

  int group, row, col;  // of the thread; the warp's first row and column
  int lane_down, lane_across;

  __device__ __forceinline__ explicit RedoShape(int t)
      : group(t / kThreads),
        row(t % kThreads / 32 / kWarpsAcross * kDown * kOwn),
        col(t / 32 % kWarpsAcross * kAcross * kOwn) {
    const int lane = t % 32, more = lane / 2 % (32 / kFewer), fewer = lane % 2 + (kFewer > 2 ? lane / 16 * 2 : 0);
    lane_down = kFewer == kDown ? fewer : more;
    lane_across = kFewer == kDown ? more : fewer;
  }
};

// Sums of all threads, of a part of k and in total, and the stages that fit beside them in BYTES.
template <class R, class A, class B, int BYTES>
struct RedoMemory {
  using Sums = float[R::kSums][kConsumers];
  RedoStages<A, B, BYTES - kMarksBytes - 2 * sizeof(Sums), 4> stages;
  Sums part, total;
};

// Columns from `first_col` of the tile on. Elements that overflow stay marked.
template <int COLS, bool A_ALONG_M, bool B_ALONG_N, int BYTES>
static __device__ __noinline__ void redo_cols(const Job& job, const Corner& tile, int first_col, int t, Marks& marks,
                                              char* rest) {
  using R = RedoShape<COLS>;
  using PanelA = RedoPanel<kTile, R::kDown, !A_ALONG_M>;
  using PanelB = RedoPanel<COLS, R::kAcross, !B_ALONG_N>;
  using Memory = RedoMemory<R, PanelA, PanelB, BYTES>;
  Memory& memory = *reinterpret_cast<Memory*>(rest);
  const R own(t);
  const int64_t depth = job.depth(tile.batch);
  PanelA a(job.a, tile.batch, tile.row, depth, t);
  PanelB b(job.b, tile.batch, tile.col + first_col, depth, t);
  sync_consumers();  // what was here before has been read
  float acc[R::kOwn][R::kOwn] = {};
  const int from_a = PanelA::place(own.row, own.lane_down, own.group * R::kDepth);
  const int from_b = PanelB::place(own.col, own.lane_across, own.group * R::kDepth);
  memory.stages.each_step(a, b, depth, [&](const auto& stage, int step, bool last) {
#pragma unroll 1
    for (int round = 0; round < R::kDepth / kRedoRound; ++round) {
      float x[kRedoRound][R::kOwn], y[kRedoRound][R::kOwn];
      PanelA::read(x, stage.a + from_a, round);
      PanelB::read(y, stage.b + from_b, round);
#pragma unroll
      for (int k = 0; k < kRedoRound; ++k)
#pragma unroll
        for (int i = 0; i < R::kOwn; ++i)
#pragma unroll
          for (int q = 0; q < R::kOwn; ++q) {
            const int j = i % 2 ? R::kOwn - 1 - q : q;
            acc[i][j] = fmaf(x[k][i], y[k][j], acc[i][j]);
          }
    }
    const int sums = step / R::kGroups;
    if (step % R::kGroups != R::kGroups - 1 && !last) return;
#pragma unroll
    for (int e = 0; e < R::kSums; ++e) {
      float& sum = acc[e / R::kOwn][e % R::kOwn];
      if (sums % kRedoChains != 0) sum += memory.part[e][t];
      memory.part[e][t] = sum;
      sum = 0;
    }
    if (sums % kRedoChains != kRedoChains - 1 && !last) return;
#pragma unroll 8
    for (int e = 0; e < R::kSums; ++e) {
      const float part = memory.part[e][t];
      memory.total[e][t] = sums < kRedoChains ? part : memory.total[e][t] + part;
    }
  });
  if (R::kGroups > 1) sync_consumers();
  const RedoneStore store(job, tile.batch);
  constexpr int kStored = R::kSums / R::kGroups;  // of a thread's sums
#pragma unroll 1
  for (int e = own.group * kStored; e < (own.group + 1) * kStored; ++e) {
    const int i = own.row + PanelA::row(own.lane_down, e / R::kOwn);
    const int j = first_col + own.col + PanelB::row(own.lane_across, e % R::kOwn);
    if (!marks.is_marked(i, j)) continue;
    float sum = memory.total[e][t % R::kThreads];
#pragma unroll
    for (int other = 1; other < R::kGroups; ++other) sum += memory.total[e][t % R::kThreads + other * R::kThreads];
    if (isfinite(sum) && store(tile.row + i, tile.col + j, sum)) marks.clear(i, j);
  }
}

// Of a tile that a cluster's `blocks` finished in parts, the part of block `rank`. BYTES of memory begin with the
// marks.
template <class Shape, bool A_ALONG_M, bool B_ALONG_N, int BYTES>
__device__ __forceinline__ void redo_tile(const Job& job, const Corner& tile, uint32_t rank, uint32_t blocks, int t,
                                          Marks& marks, char* rest) {
  constexpr int kCols = Shape::kCols;
  const auto redo = [&](auto cols) {
    redo_cols<cols, A_ALONG_M, B_ALONG_N, BYTES>(job, tile, static_cast<int>(rank) * cols, t, marks, rest);
  };
  if (blocks == 4) return redo(std::integral_constant<int, kCols / 4>());
  if (blocks == 2) return redo(std::integral_constant<int, kCols / 2>());
  if (kCols > kRedoCols && !job.batch_invariant) return redo(std::integral_constant<int, kCols>());
#pragma unroll 1
  for (int first = 0; first < kCols; first += kRedoCols)
    redo_cols<kRedoCols, A_ALONG_M, B_ALONG_N, BYTES>(job, tile, first, t, marks, rest);
}

}  // namespace sgemm::split
