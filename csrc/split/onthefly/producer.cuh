// The producers of an on-the-fly product: they fill the ring with raw panels of A, and with planes of B or raw panels
// of B that they split.
#pragma once
#include "../gemm/producer.cuh"
#include "column_splitter.cuh"

namespace sgemm::split {

// A ring of stages of kOnTheFlySteps steps. A stage holds a raw panel of A, then planes of B, which may have been
// written over a raw panel.
template <class SHAPE>
struct OnTheFlyRing : StageRing<RawPanel<false, kTile>::kBytes, RawPanel<false, SHAPE::kCols>::kBytes, 4> {
  using Shape = SHAPE;
  static constexpr int kCols = Shape::kCols;                    // of B's panel in a stage
  static constexpr int kPlaneBytes = Shape::kCols * kRowBytes;  // size of a step's planes
};

// The producer for a B that has planes. One thread copies, or all producers copy A if it has no tensor map.
template <class R, bool A_ALONG_M>
struct OnTheFlyProducer {
  using Shape = typename R::Shape;
  const Job& job;
  const RawMaps& maps;
  char* const ring;
  ProductShared& shared;

  __device__ __forceinline__ void run(const TileScheduler& scheduler) const {
    const bool leader = threadIdx.x == 0;
    if (!leader && job.a.mapped) return;
    PipelineState<R::kStages> at;
    PipelineState<2> buffer;
    for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
      const WorkTile work = scheduler.work_tile(job, index);
      const TileIndex tile = job.tile_at(work.tile);
      PanelSource<Fp16x3, Shape::kCols> b(job, job.b, tile.batch, tile.col, work.first);
      uint64_t* const scales_full = &shared.scales_full[buffer.stage];
      constexpr int kScaleBytesB = Shape::kCols * sizeof(uint32_t);
      if (leader) shared.begin_tile(buffer, tile, kScaleBytesB);
      const int stages = work.steps / kOnTheFlySteps;
      const int ahead = index == scheduler.first ? min(R::kStages, stages) : 0;  // stages ahead of the convert kernel
      const auto copy_b = [&](int stage) {
#pragma unroll
        for (int i = 0; i < kOnTheFlySteps; ++i)
          b.copy_next(true, ring + stage * R::kStageBytes + R::kBytesA + i * R::kPlaneBytes, &shared.full[stage]);
      };
      for (int i = 0; i < stages; ++i) {
        hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
        if (leader) hopper::arrive_expecting(&shared.full[at.stage], (job.a.mapped ? R::kBytesA : 0) + R::kBytesB);
        copy_a(tile, work.first + i * kOnTheFlySteps, ring + at.stage * R::kStageBytes, &shared.full[at.stage]);
        if (leader && i >= ahead) copy_b(at.stage);
        if (leader && i + 1 == max(ahead, 1)) {
          hopper::wait_for_predecessor();
          for (int i = 0; i < ahead; ++i) copy_b(i);
          hopper::copy_bulk(shared.row_scales[buffer.stage][1], b.row_scales, kScaleBytesB, scales_full);
        }
        at.advance();
      }
      buffer.advance();
    }
  }

 private:
  __device__ __forceinline__ void copy_a(const TileIndex& tile, int step, char* panel, uint64_t* full) const {
    using Panel = RawPanel<A_ALONG_M, kTile>;
    const int row = tile.row * Shape::kRows;
    if (!job.a.mapped) return Panel::copy_elements(job, job.a, tile.batch, row, step, panel, full);
#pragma unroll
    for (int i = 0; i < Panel::kBoxes; ++i)
      typename Panel::Box(job, job.a, tile.batch, row, i).copy(maps.a, step, panel, full);
  }
};

template <class R>
struct SplittingShared : ProductShared {
  SplitColumns<R::kStages, R::Shape::kCols> columns;
};

// The producer for a B that all producers split. One thread of each of their warps copies a box of each raw panel.
template <class R, bool A_ALONG_M, bool B_ALONG_N>
struct SplittingProducer {
  using Shape = typename R::Shape;
  using PanelA = RawPanel<A_ALONG_M, kTile>;
  using PanelB = RawPanel<B_ALONG_N, Shape::kCols>;
  static constexpr int kWarps = kProducers / 32;
  static_assert(PanelA::kBoxes <= kWarps && PanelB::kBoxes <= kWarps);
  static constexpr int kAhead = 2;  // stages of raw panels in flight, including the one that is split next
  const Job& job;
  const RawMaps& maps;
  char* const ring;
  SplittingShared<R>& shared;

  __device__ __forceinline__ static void init(const Job& job, SplittingShared<R>& shared) {
    shared.template init<R>(job.a.mapped ? PanelA::kBoxes : kProducers, kProducers, 1);
    shared.columns.init(job.b.mapped ? PanelB::kBoxes : kProducers);
  }

  __device__ __forceinline__ void run(const TileScheduler& scheduler) const {
    ColumnSplitter<B_ALONG_N, !A_ALONG_M, R::kStages, Shape::kCols> splitter(shared.columns);
    PipelineState<R::kStages> at, copied;
    PipelineState<2> buffer;
    int copied_index = scheduler.first, copied_step = scheduler.step0;
    Source source(job, copied_index);
    int ahead = kAhead;
    for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
      hopper::wait(&shared.scales_empty[buffer.stage], buffer.parity ^ 1);
      if (threadIdx.x == 0) shared.tiles[buffer.stage] = job.tile_at(index);
      splitter.start_tile();
      for (int step = scheduler.step0; step < scheduler.step1; step += kOnTheFlySteps) {
#pragma unroll 1
        for (; ahead > 0 && copied_index < job.work_tiles; --ahead) {
          copy(source, copied_step, copied);
          copied.advance();
          copied_step += kOnTheFlySteps;
          if (copied_step < scheduler.step1) continue;
          copied_step = scheduler.step0;
          copied_index += scheduler.stride;
          source = Source(job, copied_index);
        }
        ahead = 1;
        hopper::wait(&shared.columns.raw_full[at.stage], at.parity);
        splitter.split(ring + at.stage * R::kStageBytes + R::kBytesA, at.stage, step);
        if (step + kOnTheFlySteps >= scheduler.step1)
          splitter.finish_tile(shared.row_scales[buffer.stage][1], buffer.stage);
        // All threads that have written arrive: racecheck counts an arrival for its own thread's writes alone.
        hopper::fence_async_proxy();
        __syncwarp();
        hopper::arrive(&shared.columns.ready[at.stage]);
        at.advance();
      }
      hopper::arrive(&shared.scales_full[buffer.stage]);
      buffer.advance();
    }
  }

 private:
  // A tile's place in the operands, and the warp's boxes of its raw panels.
  struct Source {
    int batch, row, col;
    typename PanelA::Box a;
    typename PanelB::Box b;

    __device__ __forceinline__ Source(const Job& job, int index) : Source(job, job.tile_at(index)) {}
    __device__ __forceinline__ Source(const Job& job, const TileIndex& tile)
        : batch(tile.batch),
          row(tile.row * Shape::kRows),
          col(tile.col * Shape::kCols),
          a(job, job.a, batch, row, threadIdx.x / 32),
          b(job, job.b, batch, col, threadIdx.x / 32) {}
  };

  // Copies raw panels to a stage of the ring, once the stage is empty.
  __device__ __forceinline__ void copy(const Source& from, int step, const PipelineState<R::kStages>& to) const {
    char* const panel_a = ring + to.stage * R::kStageBytes;
    char* const panel_b = panel_a + R::kBytesA;
    uint64_t *const full_a = &shared.full[to.stage], *const full_b = &shared.columns.raw_full[to.stage];
    const bool leader = threadIdx.x % 32 == 0;
    if (leader || !job.a.mapped || !job.b.mapped) hopper::wait(&shared.empty[to.stage], to.parity ^ 1);
    if (!job.b.mapped) {
      PanelB::copy_elements(job, job.b, from.batch, from.col, step, panel_b, full_b);
    } else if (leader && from.b.i < PanelB::kBoxes) {
      hopper::arrive_expecting(full_b, PanelB::kBoxBytes);
      from.b.copy(maps.b, step, panel_b, full_b);
    }
    if (!job.a.mapped) {
      PanelA::copy_elements(job, job.a, from.batch, from.row, step, panel_a, full_a);
    } else if (leader && from.a.i < PanelA::kBoxes) {
      hopper::arrive_expecting(full_a, PanelA::kBoxBytes);
      from.a.copy(maps.a, step, panel_a, full_a);
    }
  }
};

}  // namespace sgemm::split
