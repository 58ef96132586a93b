// The ring of stages between the thread that copies panels and the warpgroups that multiply them, and what else they
// tell each other.
#pragma once
#include "../../gpu/pipeline_state.cuh"
#include "cluster_reduction.cuh"
#include "../format/format.cuh"
#include "tile_scheduler.cuh"

namespace sgemm::split {

// Stages of both operands' panels, one behind the other.
template <class F, class SHAPE, int STAGES>
struct Ring {
  using Shape = SHAPE;
  static constexpr int kStages = STAGES;
  static constexpr int kBytesA = kPairs<F> * Shape::kRows * kRowBytes;
  static constexpr int kBytesB = kPairs<F> * Shape::kCols * kRowBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kBytes = kStages * kStageBytes;
};

constexpr int kMaxStages = 8;
template <class F, class Shape>
using ProductRing = Ring<F, Shape, (Shape::kHalfSize ? kMaxStages : 6) / kPairs<F>>;

struct ProductShared {
  uint64_t full[kMaxStages], empty[kMaxStages];  // of the ring's stages
  uint64_t words_full[2], words_empty[2];
  ClusterBarriers cluster;
  uint32_t marked;                          // the guard has marked something
  uint32_t last;                            // of the blocks that share a tile
  uint32_t lower[2];                        // (tile's parity): Lower
  alignas(16) uint32_t words[2][2][kTile];  // (tile's parity, operand, row)
  TileIndex tiles[2];                       // that the words are of

  // A warp initialises them. Full stages of a ring wait for `writers`, words for theirs. `blocks` of the cluster.
  template <class R>
  __device__ __forceinline__ void init(int writers, int word_writers, uint32_t blocks) {
    const int i = threadIdx.x % 32;
    if (i < R::kStages) {
      hopper::init_barrier(&full[i], writers);
      hopper::init_barrier(&empty[i], kConsumers / 32);
    }
    if (i < 2) {
      hopper::init_barrier(&words_full[i], word_writers);
      hopper::init_barrier(&words_empty[i], kConsumers / 32);
    }
    if (blocks > 1) cluster.init(i, blocks, R::Shape::kSums);
    if (i == 0) marked = 0;
    hopper::fence_barrier_init();
  }
};

// Which operands of a tile need lower planes.
enum Lower : uint32_t { kLowerA = 1, kLowerB = 2, kLowerBoth = 3 };

// The first steps of a block, before it is known what they need, are multiplied by all planes: whole windows that fill
// the ring.
template <class R>
__device__ __forceinline__ int steps_ahead(const TileScheduler& scheduler, int index, int steps) {
  return index == scheduler.first ? min(R::kStages / 2 * 2, steps) : 0;
}

}  // namespace sgemm::split
