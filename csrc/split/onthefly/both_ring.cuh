// The shared memory of a product that splits both operands.
#pragma once
#include "../gemm/ring.cuh"
#include "raw_lines.cuh"

namespace sgemm::split {

// The ring of planes. The ring of raw panels, kRawStages of the same size, lies behind it.
template <class SHAPE>
struct BothRing : StageRing<SHAPE::kRows * kRowBytes, SHAPE::kCols * kRowBytes, SHAPE::kHalfSize ? 5 : 3> {
  using Shape = SHAPE;
  static constexpr bool kFew = false;
  static constexpr int kRawStages = 3;
  static constexpr int kSplitters = (Shape::kRows + Shape::kCols) / kLines;  // warps, each has 32 rows
};

// Each stage has factors, by which the sums of earlier stages are multiplied.
template <int STAGES, int SPLITTERS>
struct Rescaling {
  alignas(8) uint8_t some[STAGES][8];        // of each splitting warp: 1 if some of its factors aren't 1
  float factor[STAGES][SPLITTERS * kLines];  // written where the warp has some

  __device__ __forceinline__ bool any(int stage) const {
    const uint2 flags = *reinterpret_cast<const uint2*>(some[stage]);
    return (flags.x | flags.y) != 0;
  }
  __device__ __forceinline__ float of(int stage, int row) const {
    return some[stage][row / kLines] ? factor[stage][row] : 1;
  }
};

template <class R>
struct BothShared : ProductShared {
  uint64_t raw_full[2][R::kRawStages], raw_empty[2][R::kRawStages];  // barriers of A's and B's raw panels
  Rescaling<R::kStages, R::kSplitters> rescaling;

  // Called by one warp. `copiers`: threads that arrive at an operand's raw_full.
  __device__ __forceinline__ void init(int copiers_a, int copiers_b) {
    const int i = threadIdx.x % 32;
    if (i < R::kStages) *reinterpret_cast<uint2*>(rescaling.some[i]) = make_uint2(0, 0);
    if (i < R::kRawStages) {
      hopper::init_barrier(&raw_full[0][i], copiers_a);
      hopper::init_barrier(&raw_full[1][i], copiers_b);
      hopper::init_barrier(&raw_empty[0][i], R::Shape::kRows / kLines);
      hopper::init_barrier(&raw_empty[1][i], R::Shape::kCols / kLines);
    }
    ProductShared::init<R>(R::kSplitters, R::kSplitters, 1);
  }
};

}  // namespace sgemm::split
