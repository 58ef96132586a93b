// The producer: one thread that keeps the product's ring filled.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../convert/nonzero_planes.cuh"
#include "../format/planes.cuh"
#include "ring.cuh"
#include "tile_scheduler.cuh"

namespace sgemm::split {

// Copies an operand's panels of a tile, in the order of k. ROWS rows of each panel are copied: all 128, or one half.
template <class F, int ROWS>
struct PanelSource {
  static constexpr int kHalves = kTile / ROWS, kPlanes = QuadPlanes<F>::kPlanes;
  static constexpr int kBytes = ROWS * kRowBytes / 2;  // size of a plane
  const Operand& operand;
  int64_t index;  // index of the panel, counted over all matrices
  const char* panel;
  const RowScale* row_scales;

  __device__ __forceinline__ PanelSource(const Job& job, const Operand& x, int batch, int tile, int step)
      : operand(x),
        index(int64_t{x.count == 1 ? 0 : batch} * x.panels + tile / kHalves),
        panel(job.panel<F>(x, index, step) + tile % kHalves * x.half_apart),
        row_scales(x.row_scales + index * kTile + tile % kHalves * ROWS) {}

  // Returns true if the planes of the copied rows are contiguous.
  __device__ __forceinline__ bool together() const { return kHalves == 1 || operand.in_halves(); }

  // `lower`: includes the planes after hi.
  __device__ __forceinline__ static uint32_t bytes(bool lower) { return lower ? kPlanes * kBytes : kBytes; }
  // ONCE: no other block reads the panels soon. Precondition: together().
  template <bool ONCE = false>
  __device__ __forceinline__ void copy_next(bool lower, char* to, uint64_t* barrier) {
    static_assert(kHalves == 1 || kPairs<F> == 1);
    if constexpr (ONCE) {
      hopper::copy_bulk_once(to, panel, bytes(lower), barrier);
    } else if (together()) {
      hopper::copy_bulk(to, panel, bytes(lower), barrier);
    } else {
      hopper::copy_bulk(to, panel, kBytes, barrier);
#pragma unroll
      for (int i = 1; i < kPlanes; ++i)
        if (lower) hopper::copy_bulk(to + i * kBytes, panel + i * kPanelBytes / 2, kBytes, barrier);
    }
    panel += kPairs<F> * kPanelBytes;
  }
};

// Fills the ring. Called by a single thread: a warp with other active threads would fill the ring too slowly. If A's
// planes exist already, A's first stages are copied while the preceding kernel still runs.
template <class F, class R, class Scheduler>
__device__ void produce(const Job& job, char* ring, ProductShared& shared, const Scheduler& scheduler) {
  PipelineState<R::kStages> at;
  PipelineState<2> buffer;
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
    const WorkTile work = scheduler.work_tile(job, index);
    const TileIndex tile = job.tile_at(work.tile);
    PanelSource<F, R::kRows> a(job, job.a, tile.batch, tile.row, work.first);
    PanelSource<F, R::kCols> b(job, job.b, tile.batch, tile.col, work.first);
    constexpr int kScaleBytesA = R::kRows * sizeof(uint32_t), kScaleBytesB = R::kCols * sizeof(uint32_t);
    uint64_t* const scales_full = &shared.scales_full[buffer.stage];
    TileScales& to = shared.row_scales[buffer.stage];
    shared.begin_tile(buffer, tile, kScaleBytesA + kScaleBytesB);
    const int steps = work.steps, ahead = steps_ahead<R>(scheduler, index, steps);
    bool lower_a = true, lower_b = true;
    const auto copy_a = [&](bool lower, char* stage, uint64_t* barrier) {
      if (R::kFew && job.b.tiles == 1)
        a.template copy_next<R::kFew>(lower, stage, barrier);
      else
        a.copy_next(lower, stage, barrier);
    };
    const bool early = R::kFew && job.packed_a && index == scheduler.first;
    if (early)
      for (int step = 0; step < ahead; ++step) {
        hopper::arrive_expecting(&shared.full[step], a.bytes(true) + b.bytes(true));
        copy_a(true, ring + step * R::kStageBytes, &shared.full[step]);
      }
    for (int step = 0; step < steps;) {
      if (step == ahead) {
        lower_a = has_lower_planes(job.a, a.index);
        lower_b = has_lower_planes(job.b, b.index);
        shared.lower[buffer.stage] = (lower_a ? kLowerA : 0) | (lower_b ? kLowerB : 0);
      }
      char* const stage = ring + at.stage * R::kStageBytes;
      // If both operands have only hi, the hi of the next step is stored where lo would be.
      const bool begins = step == 0, two = !lower_a && !lower_b && step + 1 < steps;
      const bool copied = early && step < ahead;
      if (!copied) {
        hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
        hopper::arrive_expecting(&shared.full[at.stage], (a.bytes(lower_a) + b.bytes(lower_b)) << two);
      }
      if (begins && index == scheduler.first) hopper::wait_for_predecessor();  // as late as possible
      if (!copied) copy_a(lower_a, stage, &shared.full[at.stage]);
      b.copy_next(lower_b, stage + R::kBytesA, &shared.full[at.stage]);
      if (two) {
        a.copy_next(false, stage + a.kBytes, &shared.full[at.stage]);
        b.copy_next(false, stage + R::kBytesA + b.kBytes, &shared.full[at.stage]);
      }
      at.advance();
      step += 1 + two;
      if (!begins) continue;
      hopper::copy_bulk(to[0], a.row_scales, kScaleBytesA, scales_full);
      hopper::copy_bulk(to[1], b.row_scales, kScaleBytesB, scales_full);
    }
    buffer.advance();
  }
}

}  // namespace sgemm::split
