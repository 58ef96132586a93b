// The producers of an on-the-fly product: they fill the ring with raw panels of A and planes of B.
#pragma once
#include "../gemm/producer.cuh"
#include "raw_panel.cuh"

namespace sgemm::split {

// A ring of stages of kOnTheFlySteps steps. A stage holds a raw panel of A, then planes of B.
template <class SHAPE>
struct OnTheFlyRing : StageRing<RawPanel<false>::kBytes, kOnTheFlySteps * SHAPE::kCols * kRowBytes, 4> {
  using Shape = SHAPE;
  static constexpr int kCols = Shape::kCols;                    // of B's panel in a stage
  static constexpr int kPlaneBytes = Shape::kCols * kRowBytes;  // size of a step's planes
};

// One thread copies, or all producers copy A if it has no tensor map.
template <class R, bool A_ALONG_M>
struct OnTheFlyProducer {
  using Shape = typename R::Shape;
  const Job& job;
  const CUtensorMap& map;
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
      PanelSource<Fp16x3, Shape::kCols> b(job, job.b, tile.batch, tile.col, 0);
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
        copy_a(tile, i * kOnTheFlySteps, ring + at.stage * R::kStageBytes, &shared.full[at.stage]);
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
    using Panel = RawPanel<A_ALONG_M>;
    const int row = tile.row * Shape::kRows;
    if (!job.a.mapped) return Panel::copy_elements(job, job.a, tile.batch, row, step, panel, full);
#pragma unroll
    for (int i = 0; i < Panel::kBoxes; ++i)
      typename Panel::Box(job, job.a, tile.batch, row, i).copy(map, step, panel, full);
  }
};

}  // namespace sgemm::split
