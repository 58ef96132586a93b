// Maps the consumer warps' accumulators to a tile of C.
#pragma once
#include "../../gpu/warpgroups.cuh"
#include "sizes.h"

namespace sgemm::split {

// Layout of a tile of M x N over the consumers: each warp has 16 rows.
template <int M, int N>
struct TileShape {
  static_assert(M == kConsumers / 32 * 16);
  static constexpr int kRows = M, kCols = N;
  static constexpr int kSums = M * N / kConsumers;  // accumulators of a thread
  static constexpr int kBands = N / 32;             // bands of 32 columns

  // `t`: index of the thread among the consumers.
  __device__ __forceinline__ static int warp_row(int t) { return t / 32 * 16; }
  // Position of thread t's accumulator `e` in the tile.
  __device__ __forceinline__ static int row(int t, int e) { return warp_row(t) + t % 32 / 4 + e / 2 % 2 * 8; }
  __device__ __forceinline__ static int col(int t, int e) { return e / 4 * 8 + t % 4 * 2 + e % 2; }

  static constexpr bool kHalfSize = M * N < kTile * kTile;
};

}  // namespace sgemm::split
