// The ends of a large product's tiles: parts of k are added up, and results go to memory.
#pragma once
#include "../common/hopper.cuh"
#include "../common/tile_order.cuh"
#include "large.h"

namespace sgemm::ieee {

struct LargeJob {
  Problem p;
  int64_t count_a, count_b;  // matrices in memory: 1 if the batch shares one
  int steps;                 // of k
  int slices;                // of them, with results of their own: one if there is a batch
  int tiles, tiles_m, tiles_n;
  int whole;           // tiles; those behind are shared
  int sharing;         // blocks
  bool rows, columns;  // four neighbours of a row of d, or of a column, can be written at once, and those of c read
  float* parts;        // (sharing + tiles left over, sums of a thread, threads)
  uint32_t* arrived;   // parts of a tile that are there
};

constexpr int kTilesTogether = 8;  // rows of tiles that are walked together
constexpr int kLargeStages = 4;

// A tile of which GROUPS of warps have all elements each, of a part of k.
template <int GROUPS>
struct LargeShape {
  static constexpr int kGroups = GROUPS;
  static constexpr int kRows = Large::BM / kGroups, kCols = Large::BN;
  static constexpr int kGroupThreads = Large::kThreads / kGroups;
  static constexpr int kPitchA = kRows * 4, kPitchB = kCols * 4;  // bytes of a k
  static constexpr int kBytesA = Large::BK * kPitchA, kStageBytes = kBytesA + Large::BK * kPitchB;
  static constexpr int kRingBytes = kLargeStages * kStageBytes;
};

// A part of a shared tile: steps [first, first + steps) of its k.
struct LargePart {
  int tile, first, steps;
  int index, count;  // of the tile's parts
  int place;         // in memory
};

// The place in a tile of thread t of a group: a warp has 32 rows and all columns; its lanes, 4 x 8 of them, have quads
// of both.
struct LargePlace {
  int row, col;
  __device__ __forceinline__ explicit LargePlace(int t) : row(t / 32 * 32 + t % 32 / 8 * 4), col(t % 8 * 4) {}
  // From the first row or column of a thread to the i-th.
  __device__ __forceinline__ static constexpr int row_on(int i) { return i / 4 * 16 + i % 4; }
  __device__ __forceinline__ static constexpr int col_on(int j) { return j / 4 * 32 + j % 4; }
};

using LargeSums = float[Large::TM][Large::TN];

// Leaves a part in memory. Returns whether it was the tile's last: then `sum` is that of all parts.
__device__ __forceinline__ bool add_up_parts(const LargeJob& job, const LargePart& part, LargeSums& sum, bool& last,
                                             int t) {
  constexpr int kSums = Large::TM * Large::TN, kThreads = Large::kThreads, kFloats = kSums * kThreads;
  constexpr int kAtOnce = 64;  // reads: one after the other, each would wait for memory
  float(&all)[kSums] = reinterpret_cast<float(&)[kSums]>(sum);
  float* const parts = job.parts + int64_t{part.place} * kFloats + t;
  // One by one: stored in fours, sums would lie in the register bank of what they are multiplied from.
#pragma unroll
  for (int e = 0; e < kSums; ++e) __stcg(parts + int64_t{part.index} * kFloats + e * kThreads, all[e]);
  hopper::sync_some(1, kThreads);
  if (t == 0) last = hopper::arrives_last(&job.arrived[part.tile - job.whole], part.count);
  hopper::sync_some(1, kThreads);
  if (!last) return false;
#pragma unroll
  for (int e = 0; e < kSums; ++e) all[e] = 0;
#pragma unroll 1
  for (int i = 0; i < part.count; ++i) {
    const float* from = parts + int64_t{i} * kFloats;
#pragma unroll
    for (int e = 0; e < kSums; e += kAtOnce) {
      float add[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) add[j] = __ldcg(from + (e + j) * kThreads);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) all[e + j] += add[j];
    }
  }
  return true;
}

// Room for a warp's 4 x 4 sums a lane, on their way to memory.
struct LargeStaging {
  static constexpr int kRows = 16, kCols = 32, kPitch = kCols + 4;  // rows begin in different banks
  alignas(16) float sums[kRows][kPitch];
};

// Where a tile's results go: D = alpha sum + beta C. STAGED: sums that can't be stored in fours are exchanged first.
// Not in tiles of 256 rows: it costs their loop registers in the right banks, and more than it gains.
template <bool STAGED>
class LargeOutput {
 public:
  // From the thread's first element of the tile on. `staging` is the warp's.
  __device__ __forceinline__ LargeOutput(const LargeJob& job, const TileIndex& tile, int rows, int cols,
                                         const LargePlace& place, LargeStaging& staging)
      : job_(job),
        d_(job.p.d.matrix(tile.batch)),
        c_(job.p.c.matrix(tile.batch)),
        row_(int64_t{tile.row} * rows + place.row),
        col_(int64_t{tile.col} * cols + place.col),
        staging_(staging) {}

  // 4 x 4 sums, `row` and `col` further on. For all lanes of a warp.
  __device__ __forceinline__ void store(int row, int col, const float (&sum)[4][4]) const {
    const int64_t i0 = row_ + row, j0 = col_ + col;
    if (job_.rows) {
#pragma unroll
      for (int i = 0; i < 4; ++i) store_four(i0 + i, j0, make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]));
    } else if (job_.columns) {
#pragma unroll
      for (int j = 0; j < 4; ++j) store_four(i0, j0 + j, make_float4(sum[0][j], sum[1][j], sum[2][j], sum[3][j]));
    } else if constexpr (STAGED) {
      store_exchanged(i0, j0, sum);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) store_one(i0 + i, j0 + j, job_.p.alpha * sum[i][j]);
    }
  }

 private:
  // Lanes exchange their sums, so that neighbouring ones store neighbours.
  __device__ __forceinline__ void store_exchanged(int64_t i0, int64_t j0, const float (&sum)[4][4]) const {
    using S = LargeStaging;
    const Problem& p = job_.p;
    const int lane = threadIdx.x % 32, row = lane / 8 * 4, col = lane % 8 * 4;
    __syncwarp();  // the sums before have been stored
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<float4*>(&staging_.sums[row + i][col]) =
          make_float4(p.alpha * sum[i][0], p.alpha * sum[i][1], p.alpha * sum[i][2], p.alpha * sum[i][3]);
    __syncwarp();
    const bool along_rows = d_.row != 1;
#pragma unroll 4
    for (int n = 0; n < S::kRows * S::kCols / 32; ++n) {
      const int x = along_rows ? n : lane % S::kRows, y = along_rows ? lane : n * 32 / S::kRows + lane / S::kRows;
      store_one(i0 - row + x, j0 - col + y, staging_.sums[x][y]);
    }
  }

  __device__ __forceinline__ void store_one(int64_t i, int64_t j, float value) const {
    const Problem& p = job_.p;
    if (!d_.contains(i, j)) return;
    if (p.beta != 0) value += p.beta * *c_.at(i, j);
    *d_.at(i, j) = value;
  }

  // Neighbours in memory, the first at (i, j).
  __device__ __forceinline__ void store_four(int64_t i, int64_t j, float4 v) const {
    const Problem& p = job_.p;
    if (!d_.contains(i, j)) return;
    v = make_float4(p.alpha * v.x, p.alpha * v.y, p.alpha * v.z, p.alpha * v.w);
    if (p.beta != 0) {
      const float4 add = *reinterpret_cast<const float4*>(c_.at(i, j));
      v = make_float4(v.x + p.beta * add.x, v.y + p.beta * add.y, v.z + p.beta * add.z, v.w + p.beta * add.w);
    }
    hopper::store(d_.at(i, j), v);
  }

  const LargeJob& job_;
  const Matrix d_;
  const ConstMatrix c_;
  const int64_t row_, col_;
  LargeStaging& staging_;
};

// A thread's sums are eight blocks of 4 x 4.
constexpr int kSumBlocks = Large::TM * Large::TN / 16;
__device__ __forceinline__ constexpr int first_row(int block) { return block / (Large::TN / 4) * 4; }
__device__ __forceinline__ constexpr int first_col(int block) { return block % (Large::TN / 4) * 4; }

template <class Shape>
using OutputOf = LargeOutput<(Shape::kGroups > 1)>;
template <class Shape>
__device__ __forceinline__ OutputOf<Shape> output_of(const LargeJob& job, int tile, int t) {
  __shared__ LargeStaging staging[Large::kThreads / 32];
  return {job,           tile_at(tile, job.tiles_m, job.tiles_n, kTilesTogether),
          Shape::kRows,  Shape::kCols,
          LargePlace(t), staging[threadIdx.x / 32]};
}

// The sums of a thread of the first group.
template <class Shape>
__device__ __forceinline__ void store(const LargeJob& job, int tile, const LargeSums& sum, int t) {
  const OutputOf<Shape> output = output_of<Shape>(job, tile, t);
#pragma unroll
  for (int b = 0; b < kSumBlocks; ++b) {
    const int i0 = first_row(b), j0 = first_col(b);
    float block[4][4];
#pragma unroll
    for (int e = 0; e < 16; ++e) block[e / 4][e % 4] = sum[i0 + e / 4][j0 + e % 4];
    output.store(LargePlace::row_on(i0), LargePlace::col_on(j0), block);
  }
}

// The only tile of a cluster, whose blocks have a part of k each. All sums go to the ring, which has been used up; of
// those at a place of the tile each thread there, of all groups and blocks, adds up and stores some.
template <class Shape, int BLOCKS>
__device__ __forceinline__ void store_cluster_tile(const LargeJob& job, int tile, const LargeSums& sum, char* ring,
                                                   int t) {
  constexpr int kThreads = Shape::kGroupThreads, kParts = BLOCKS * Shape::kGroups;
  constexpr int kEach = (kSumBlocks + kParts - 1) / kParts;
  static_assert(Large::TM * Large::TN * Large::kThreads * 4 <= Shape::kRingBytes);
  const int group = t / kThreads, of_group = t % kThreads;
  const auto place = [of_group](int group, int e) {
    return ((group * Large::TM * Large::TN + e) * kThreads + of_group) * static_cast<int>(sizeof(float));
  };
  hopper::sync_some(2, Large::kThreads);
#pragma unroll
  for (int e = 0; e < Large::TM * Large::TN; ++e)
    *reinterpret_cast<float*>(ring + place(group, e)) = sum[e / Large::TN][e % Large::TN];
  hopper::arrive_cluster();
  hopper::wait_cluster();
  const int first = hopper::cluster_rank() * Shape::kGroups + group;
  float total[kEach][4][4];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int b = first + n * kParts, origin = first_row(b) * Large::TN + first_col(b);
    if (kSumBlocks % kParts && b >= kSumBlocks) break;
    float part[kParts][16];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const uint32_t from =
          hopper::map_to_rank(hopper::shared_address(ring) + place(i % Shape::kGroups, origin), i / Shape::kGroups);
#pragma unroll
      for (int e = 0; e < 16; ++e)
        part[i][e] = hopper::load_in_cluster(from + (e / 4 * Large::TN + e % 4) * kThreads * 4);
    }
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      float& sum = total[n][e / 4][e % 4];
      sum = part[0][e];
#pragma unroll
      for (int i = 1; i < kParts; ++i) sum += part[i][e];
    }
  }
  hopper::arrive_cluster();
  const OutputOf<Shape> output = output_of<Shape>(job, tile, of_group);
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int b = first + n * kParts;
    if (kSumBlocks % kParts && b >= kSumBlocks) break;
    output.store(LargePlace::row_on(first_row(b)), LargePlace::col_on(first_col(b)), total[n]);
  }
  hopper::wait_cluster();  // others may still be reading here
}

}  // namespace sgemm::ieee
