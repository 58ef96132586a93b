// An operand's panels of float32 as they lie in memory, on their way to the converters of fused.cuh, several stages
// ahead.
//
// A tensor map lets one thread copy whole panels, with zeros for what is outside, so that the converters have nothing
// to do with it. Without one, where neighbours are no quads in memory, each of them copies the elements that it will
// need.
#pragma once
#include "../gpu/ptx/async_copy.cuh"
#include "../gpu/tensor_map.cuh"
#include "product.cuh"

namespace sgemm::split {

constexpr int kConverters = 256;  // threads, half of them for each operand

// Stages of both operands' raw panels: first those of A, then those of B. A panel has rows of 32 of k, or 32 of k with
// all rows each.
template <class SHAPE>
struct RawRing {
  using Shape = SHAPE;
  static constexpr int kStages = Shape::kHalfSize ? 4 : 3;
  static constexpr int kFloatsA = Shape::kRows * kStep, kFloatsB = Shape::kCols * kStep;  // of a panel
  static constexpr int kFloats = kStages * (kFloatsA + kFloatsB);
  static constexpr int kBytes = kFloats * static_cast<int>(sizeof(float));
};

// Both operands' tensor maps. A CUtensorMap's address has to be a multiple of 64.
struct RawMaps {
  CUtensorMap a, b;
};

// Thread t's quads of a panel of ROWS: four neighbours along k, or along rows. Each warp has a quarter of the rows for
// its own, so that none waits for another to know their largest elements. Of what it stores at once, half lies where
// the swizzle puts it into other banks than the other half.
template <bool ALONG_MN, int ROWS>
struct QuadPlace {
  static constexpr int kRows = ROWS, kOwnRows = ROWS / 4;
  static constexpr int kQuads = ROWS / 16;      // of a thread
  static constexpr int kAcross = kOwnRows / 4;  // along rows: lanes with the same k
  static constexpr bool kFull = ROWS == kTile;
  int row, k;  // of the first quad

  __device__ __forceinline__ explicit QuadPlace(int t)
      : row(ALONG_MN ? row_of(t / 32, t % kAcross * 4) : row_of(t / 32, t / 8 % 2 * 2 + t / 16 % 2)),
        k(!ALONG_MN ? t % 8 * 4
          : kFull   ? t / 8 % 2 * 4 + t / 16 % 2
                    : t / 4 % 4 * 2 + t / 16 % 2) {}

  // Quad j lies so much further.
  __device__ __forceinline__ static constexpr int rows_on(int j) { return ALONG_MN ? 0 : j * 16; }
  __device__ __forceinline__ static constexpr int k_on(int j) {
    return !ALONG_MN ? 0 : kFull ? j / 2 * 8 + j % 2 * 2 : j * 8;
  }
  __device__ __forceinline__ static constexpr int floats_on(int j) { return rows_on(j) * kStep + k_on(j) * ROWS; }

  // The warp's i-th row.
  __device__ __forceinline__ static constexpr int row_of(int warp, int i) {
    return ALONG_MN ? warp * kOwnRows + i : i / 4 * 16 + warp / 2 * 8 + i / 2 % 2 * 4 + warp % 2 * 2 + i % 2;
  }
  __device__ __forceinline__ int first_float() const { return ALONG_MN ? k * ROWS + row : row * kStep + k; }
};

// An operand's raw panels as its converters see them, a stage after the other.
template <bool ALONG_MN, int ROWS, int STAGES>
class RawReader {
 public:
  // `panels`: STAGES of them. `full`: a barrier each.
  __device__ __forceinline__ RawReader(const Job& job, bool of_b, float* panels, uint64_t* full,
                                       const TileScheduler& scheduler, int t)
      : job_(job),
        x_(of_b ? job.b : job.a),
        panels_(panels),
        full_(full),
        scheduler_(scheduler),
        of_b_(of_b),
        t_(t),
        at_(t),
        tile_(scheduler.first),
        step_(scheduler.step0) {
    if (!x_.mapped)
      for (int i = 0; i < STAGES; ++i) copy_elements(i);
  }

  // The thread's first quad of the next panel, when it is there.
  __device__ __forceinline__ const float* wait() const {
    if (x_.mapped)
      hopper::wait(&full_[next_.stage], next_.parity);
    else
      wait_copies<STAGES - 1>();
    return panels_ + next_.stage * kFloats + at_.first_float();
  }

  // The thread is done with it. Who sees that a stage of the ring is full knows that all threads are.
  __device__ __forceinline__ void release() {
    if (!x_.mapped) copy_elements(next_.stage);
    next_.advance();
  }

 private:
  using Place = QuadPlace<ALONG_MN, ROWS>;
  static constexpr int kFloats = ROWS * kStep;

  // The thread's own elements of the panel after those under way.
  __device__ __forceinline__ void copy_elements(int stage) {
    if (tile_ < job_.tiles) {
      const TileIndex tile = tile_at(job_, tile_);
      const int64_t row = int64_t{of_b_ ? tile.col : tile.row} * ROWS + at_.row, k = int64_t{step_} * kStep + at_.k;
      const int64_t rows_left = x_.size - row, k_left = job_.depth(tile.batch) - k;
      // So many quads have elements inside, each so many.
      const int64_t left = ALONG_MN ? k_left : rows_left, neighbours = ALONG_MN ? rows_left : k_left;
      const int64_t neighbour = ALONG_MN ? x_.stride : x_.k_stride;
      const float* quads = x_.data + x_.batch.offset(tile.batch) + row * x_.stride + k * x_.k_stride;
      float* target = panels_ + stage * kFloats + at_.first_float();
#pragma unroll 1
      for (int j = 0; j < Place::kQuads; ++j) {
        const float* quad = quads + Place::rows_on(j) * x_.stride + Place::k_on(j) * x_.k_stride;
        const int64_t inside = Place::rows_on(j) + Place::k_on(j) < left ? neighbours : 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float* to = target + Place::floats_on(j) + e;
          if (e < inside)
            copy_async<4>(to, quad + e * neighbour, 4);
          else
            *to = 0;
        }
      }
      if (++step_ == scheduler_.step1) {
        step_ = scheduler_.step0;
        tile_ += scheduler_.stride;
      }
    }
    commit_copies();
  }

  const Job& job_;
  const Operand& x_;
  float* const panels_;
  uint64_t* const full_;
  const TileScheduler& scheduler_;
  const bool of_b_;
  const int t_;
  const Place at_;
  PipelineState<STAGES> next_;
  int tile_, step_;  // to copy, element by element
};

// Copies the panels of both operands, as far as there are maps, in the order of tiles and stages. In shared memory; one
// thread of the consumers works with it.
template <class R, bool A_ALONG_M, bool B_ALONG_N>
struct PanelLoader {
  using Shape = typename R::Shape;
  uint64_t full[2][R::kStages];  // barriers
  volatile int tile;             // of the next panels; or others would read ahead of the question who they are
  int step, slot;
  int row, col, k;            // of the tile
  hopper::MapPlace place[2];  // of its matrices of both operands

  __device__ __forceinline__ void start(const Job& job, const RawMaps& maps, const TileScheduler& scheduler) {
    if (job.a.mapped) hopper::prefetch_map(&maps.a);
    if (job.b.mapped) hopper::prefetch_map(&maps.b);
    tile = scheduler.first;
    step = scheduler.step0;
    slot = 0;
    find_tile(job);
  }

  // The next panels, to the place of those that were used up longest ago.
  __device__ __forceinline__ void load(const Job& job, const RawMaps& maps, float* panels,
                                       const TileScheduler& scheduler) {
    if (tile >= job.tiles) return;
    load<A_ALONG_M, R::kFloatsA>(job.a, maps.a, panels, row, 0);
    load<B_ALONG_N, R::kFloatsB>(job.b, maps.b, panels + R::kStages * R::kFloatsA, col, 1);
    slot = slot + 1 == R::kStages ? 0 : slot + 1;
    if (++step < scheduler.step1) return;
    step = scheduler.step0;
    tile = tile + scheduler.stride;
    if (tile < job.tiles) find_tile(job);
  }

 private:
  __device__ __forceinline__ void find_tile(const Job& job) {
    const TileIndex index = tile_at(job, tile);
    row = index.row * Shape::kRows;
    col = index.col * Shape::kCols;
    k = static_cast<int>(index.batch * job.k_slice);
    const int batch = job.k_slice ? 0 : index.batch;
    place[0] = hopper::place_in_map(job.a.batch, job.a.count, batch);
    place[1] = hopper::place_in_map(job.b.batch, job.b.count, batch);
  }

  template <bool ALONG_MN, int FLOATS>
  __device__ __forceinline__ void load(const Operand& x, const CUtensorMap& map, float* panels, int mn, int operand) {
    if (!x.mapped) return;
    const int q = k + step * kStep;
    uint64_t* barrier = &full[operand][slot];
    hopper::arrive_expecting(barrier, FLOATS * sizeof(float));
    hopper::copy_tensor(panels + slot * FLOATS, &map, ALONG_MN ? mn : q, ALONG_MN ? q : mn, place[operand].matrix,
                        place[operand].group, barrier);
  }
};

}  // namespace sgemm::split
