// The ring of stages between the producer and the consumer warpgroups, and the rest of the shared memory through which
// they communicate.
#pragma once
#include "../../gpu/cluster_reduction.cuh"
#include "../../gpu/panel_view.cuh"
#include "../../gpu/pipeline_state.cuh"
#include "../../gpu/rasterization.cuh"
#include "../format/row_scale.cuh"

namespace sgemm::split {

// The ring of a product of planes, for tiles of a shape.
template <class F, class SHAPE, int STAGES>
struct Ring : StageRing<kPairs<F> * SHAPE::kRows * kRowBytes, kPairs<F> * SHAPE::kCols * kRowBytes, STAGES> {
  using Shape = SHAPE;
  static constexpr int kRows = Shape::kRows, kCols = Shape::kCols;  // of the panels in a stage
  static constexpr bool kFew = false;                               // the product has few columns
};

constexpr int kMaxStages = 12;
template <class F, class Shape>
using ProductRing = Ring<F, Shape, (Shape::kHalfSize ? 8 : 6) / kPairs<F>>;

struct ProductShared {
  uint64_t full[kMaxStages], empty[kMaxStages];  // barriers of the ring's stages
  uint64_t scales_full[2], scales_empty[2];
  ClusterBarriers cluster;
  uint32_t refused;                      // not 0 if the guard has refused an element
  uint32_t last;                         // not 0 if the block is the last of those that share a tile
  uint32_t lower[2];                     // (tile's parity): flags of Lower
  alignas(16) TileScales row_scales[2];  // (tile's parity)
  TileIndex tiles[2];                    // tiles that `row_scales` belongs to

  // Announces a tile whose scales are `bytes` of bulk copies. `at`: the tile's buffer of two.
  __device__ __forceinline__ void begin_tile(const PipelineState<2>& at, const TileIndex& tile, uint32_t bytes) {
    hopper::wait(&scales_empty[at.stage], at.parity ^ 1);
    tiles[at.stage] = tile;
    hopper::arrive_expecting(&scales_full[at.stage], bytes);
  }

  // Initialises the barriers, by one warp. `writers` arrive at a stage's full barrier, and `scale_writers` at that of
  // `row_scales`. `blocks` is the size of the cluster.
  template <class R>
  __device__ __forceinline__ void init(int writers, int scale_writers, uint32_t blocks) {
    const int i = threadIdx.x % 32;
    if (i < R::kStages) {
      hopper::init_barrier(&full[i], writers);
      hopper::init_barrier(&empty[i], kConsumers / 32);
    }
    if (i < 2) {
      hopper::init_barrier(&scales_full[i], scale_writers);
      hopper::init_barrier(&scales_empty[i], kConsumers / 32);
    }
    if (blocks > 1) cluster.init(i, R::Shape::kSums);
    if (i == 0) refused = 0;
    hopper::fence_barrier_init();
  }
};

// Flags of the operands of a tile that need lower planes.
enum Lower : uint32_t { kLowerA = 1, kLowerB = 2, kLowerBoth = 3 };

}  // namespace sgemm::split
