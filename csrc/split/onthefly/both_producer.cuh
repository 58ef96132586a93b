// The producers of a product that splits both operands: four warps that copy raw panels.
#pragma once
#include "../../gpu/ptx/async_copy.cuh"
#include "../gemm/tile_scheduler.cuh"
#include "both_ring.cuh"
#include "raw_panel.cuh"

namespace sgemm::split {

// Both operands' tensor maps. The address of a CUtensorMap must be a multiple of 64 bytes.
struct RawMaps {
  CUtensorMap a, b;
};

// Copies an operand's raw panels, ROWS rows of each step. One thread copies by the tensor map, or all producers if
// there is none.
template <class R, int ROWS>
class RawCopies {
 public:
  const bool copies;  // this thread does

  // `panels`: the operand's, in the first raw stage. `thread` copies by the map.
  __device__ __forceinline__ RawCopies(const Job& job, const Operand& x, const CUtensorMap& map, char* panels,
                                       uint64_t* full, uint64_t* empty, int thread)
      : copies(!x.mapped || threadIdx.x == thread),
        job_(job),
        x_(x),
        map_(map),
        panels_(panels),
        full_(full),
        empty_(empty) {}

  __device__ __forceinline__ void begin_tile(int batch, int row) {
    batch_ = batch;
    row_ = row;
    k_ = static_cast<int>(batch * job_.k_slice);
    place_ = hopper::place_in_map(x_.batch, x_.count, job_.k_slice ? 0 : batch);
  }

  __device__ __forceinline__ void copy(const PipelineState<R::kRawStages>& at, int step) const {
    if (!copies) return;
    char* const panel = panels_ + at.stage * R::kStageBytes;
    uint64_t* const full = &full_[at.stage];
    hopper::wait(&empty_[at.stage], at.parity ^ 1);
    if (!x_.mapped) {
      copy_elements(job_, x_, batch_, row_, step, panel);
      return hopper::arrive_after_copies(full);
    }
    const int k = k_ + step * kStep;
    hopper::arrive_expecting(full, ROWS * kRowBytes);
    if (x_.along_k) return hopper::copy_tensor_once(panel, &map_, k, row_, place_.matrix, place_.group, full);
#pragma unroll
    for (int i = 0; i < ROWS; i += kLines)
      hopper::copy_tensor_once(panel + i * kRowBytes, &map_, row_ + i, k, place_.matrix, place_.group, full);
  }

 private:
  // Each warp copies a quarter of the lines; its lanes have neighbours in memory.
  static __device__ __noinline__ void copy_elements(const Job& job, const Operand& x, int batch, int row, int step,
                                                    char* panel) {
    constexpr int kOfWarp = kLines / (kProducers / 32);
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * kOfWarp;
    const int64_t k0 = int64_t{step} * kStep;
    const int rows_left = static_cast<int>(min(x.size - row, int64_t{ROWS}));
    const int depth_left = static_cast<int>(min(job.depth(batch) - k0, int64_t{kStep}));
    const float* from = x.data + x.batch.offset(batch) + row * x.stride + k0 * x.k_stride;
#pragma unroll 1
    for (int rows = 0; rows < ROWS; rows += kLines, from += kLines * x.stride, panel += kLinesBytes) {
#pragma unroll
      for (int i = 0; i < kOfWarp; ++i) {
        const int line = first + i, r = x.along_k ? line : lane, k = x.along_k ? lane : line;
        const bool inside = rows + r < rows_left && k < depth_left;
        copy_async<4>(reinterpret_cast<float*>(panel + place_in_lines(line, lane)),
                      inside ? from + r * x.stride + k * x.k_stride : x.data, inside ? 4 : 0);
      }
    }
  }

  const Job& job_;
  const Operand& x_;
  const CUtensorMap& map_;
  char* const panels_;
  uint64_t *const full_, *const empty_;
  int batch_, row_, k_;
  hopper::MapPlace place_;
};

// Copies the raw panels of all of the block's tiles. Called by kProducers threads.
template <class R>
__device__ void copy_raw(const Job& job, const RawMaps& maps, char* raw, BothShared<R>& shared) {
  using Shape = typename R::Shape;
  RawCopies<R, Shape::kRows> a(job, job.a, maps.a, raw, shared.raw_full[0], shared.raw_empty[0], 0);
  RawCopies<R, Shape::kCols> b(job, job.b, maps.b, raw + R::kBytesA, shared.raw_full[1], shared.raw_empty[1], 32);
  if (!a.copies && !b.copies) return;
  const TileScheduler scheduler(job);
  PipelineState<R::kRawStages> at;
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
    const TileIndex tile = job.tile_at(index);
    a.begin_tile(tile.batch, tile.row * Shape::kRows);
    b.begin_tile(tile.batch, tile.col * Shape::kCols);
#pragma unroll 1
    for (int step = 0; step < job.steps; ++step, at.advance()) {
      a.copy(at, step);
      b.copy(at, step);
    }
  }
}

}  // namespace sgemm::split
