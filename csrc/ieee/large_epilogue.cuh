// Epilogue of large products: adds up parts of k and stores the results.
#pragma once
#include "../gpu/hopper.cuh"
#include "../epilogue/epilogue.cuh"
#include "../epilogue/in_order.cuh"
#include "../gpu/fixup.cuh"
#include "../gpu/rasterization.cuh"
#include "../gpu/stream_k.h"
#include "large.h"

namespace sgemm::ieee {

struct LargeJob {
  Problem p;
  StreamK deal;
  int slices;  // slices of k, each with its own results; 1 if there is a batch
  int tiles_m, tiles_n;
  bool rows, columns;  // four neighbours of a row or a column of d can be stored as a vector, and read in c
  float* parts;        // (deal.parts(), sums of a thread, threads)
  uint32_t* arrived;   // number of parts of each shared tile that have arrived
};

constexpr int kLargeStages = 4;

// A tile computed by GROUPS groups of warps. Each group has all of the elements for a part of k.
template <int GROUPS>
struct LargeShape {
  static constexpr int kGroups = GROUPS;
  static constexpr int kRows = Large::BM / kGroups, kCols = Large::BN;
  static constexpr int kGroupThreads = Large::kThreads / kGroups;
  static constexpr int kPitchA = kRows * 4, kPitchB = kCols * 4;  // bytes per k
  static constexpr int kBytesA = Large::BK * kPitchA, kStageBytes = kBytesA + Large::BK * kPitchB;
  static constexpr int kRingBytes = kLargeStages * kStageBytes;
};

// The place in a tile of thread t of a group. A warp has 32 rows and all columns; its 4 x 8 lanes have quads of rows
// and of columns.
struct LargePlace {
  int row, col;
  __device__ __forceinline__ explicit LargePlace(int t) : row(t / 32 * 32 + t % 32 / 8 * 4), col(t % 8 * 4) {}
  // Distance from a thread's first row or column to its i-th.
  __device__ __forceinline__ static constexpr int row_on(int i) { return i / 4 * 16 + i % 4; }
  __device__ __forceinline__ static constexpr int col_on(int j) { return j / 4 * 32 + j % 4; }
};

using LargeSums = float[Large::TM][Large::TN];
constexpr int kLargeSums = Large::TM * Large::TN;

// Recomputes and stores a thread's sums of a shared tile if some are not finite; fix_up() has left such sums unstored.
// The tile's `count` parts begin with part `first`.
static __device__ __noinline__ void redo_parts(const LargeJob& job, int tile, int first, int count, int t) {
  const Problem& p = job.p;
  const float* const parts = job.parts + int64_t{first} * kLargeSums * Large::kThreads + t;
  const auto sum_of = [&](int e) {
    float sum = __ldcg(parts + e * Large::kThreads);
    for (int i = 1; i < count; ++i) sum += __ldcg(parts + (int64_t{i} * kLargeSums + e) * Large::kThreads);
    return sum;
  };
  bool finite = true;
#pragma unroll 1
  for (int e = 0; e < kLargeSums; ++e) finite = finite && is_finite(sum_of(e));
  if (finite) return;
  const TileIndex at = tile_at(tile, job.tiles_m, job.tiles_n, kTilesTogether);
  const LargePlace place(t);
#pragma unroll 1
  for (int e = 0; e < kLargeSums; ++e) {
    const int64_t i = int64_t{at.row} * Large::BM + place.row + LargePlace::row_on(e / Large::TN);
    const int64_t j = int64_t{at.col} * Large::BN + place.col + LargePlace::col_on(e % Large::TN);
    if (!p.d.contains(i, j)) continue;
    float sum = sum_of(e);
    if (!is_finite(sum)) sum = in_order(p, at.batch, i, j);
    *p.d.matrix(at.batch).at(i, j) = add_c(p, p.alpha * sum, p.c.matrix(at.batch).at(i, j));
  }
}

// Like sgemm::fix_up(). If some of a thread's sums are not finite, the thread saves `part` to `redo` for later:
// recomputing them here would cost the loop its registers.
__device__ __forceinline__ bool fix_up(const LargeJob& job, const WorkTile& part, LargeSums& sum, bool& last,
                                       WorkTile& redo, int t) {
  float(&all)[kLargeSums] = reinterpret_cast<float(&)[kLargeSums]>(sum);
  float* const parts = job.parts + int64_t{part.place} * kLargeSums * Large::kThreads;
  if (!sgemm::fix_up<SingleSums, Large::kThreads>(parts, part.index, part.count,
                                                  &job.arrived[part.tile - job.deal.whole], all, last, t))
    return false;
  if (zero_if_finite(all) == 0) return true;
  redo = part;
  return false;
}

// Staging for 4 x 4 sums of each lane of a warp, on their way to memory.
struct LargeStaging {
  static constexpr int kRows = 16, kCols = 32, kPitch = kCols + 4;  // rows begin in different banks
  alignas(16) float sums[kRows][kPitch];
};

// Stores a tile's results: D = alpha sum + beta C. STAGED: lanes first exchange sums that can't be stored in fours.
// Tiles of 256 rows don't use it: their loop would lose its favourable register banks, which costs more than STAGED
// gains.
template <bool STAGED>
class LargeOutput {
 public:
  // Starts at the thread's first element of the tile. `staging` belongs to the warp.
  __device__ __forceinline__ LargeOutput(const LargeJob& job, const TileIndex& tile, int rows, int cols,
                                         const LargePlace& place, LargeStaging& staging)
      : job_(job),
        d_(job.p.d.matrix(tile.batch)),
        c_(job.p.c.matrix(tile.batch)),
        row_(int64_t{tile.row} * rows + place.row),
        col_(int64_t{tile.col} * cols + place.col),
        staging_(staging) {}

  // Stores 4 x 4 sums at offset (`row`, `col`). All lanes of a warp must call.
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
  // Lanes exchange their sums, so that neighbouring lanes store neighbouring elements.
  __device__ __forceinline__ void store_exchanged(int64_t i0, int64_t j0, const float (&sum)[4][4]) const {
    using S = LargeStaging;
    const Problem& p = job_.p;
    const int lane = threadIdx.x % 32, row = lane / 8 * 4, col = lane % 8 * 4;
    __syncwarp();  // the previous sums have been stored
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
    if (d_.contains(i, j)) *d_.at(i, j) = add_c(job_.p, value, c_.at(i, j));
  }

  // Stores four neighbours in memory, the first at (i, j).
  __device__ __forceinline__ void store_four(int64_t i, int64_t j, float4 v) const {
    const Problem& p = job_.p;
    if (!d_.contains(i, j)) return;
    float x[4] = {p.alpha * v.x, p.alpha * v.y, p.alpha * v.z, p.alpha * v.w};
    if (p.beta != 0) {
      const float4 c = *reinterpret_cast<const float4*>(c_.at(i, j));
      add_c(p.beta, {c.x, c.y, c.z, c.w}, x);
    }
    hopper::store(d_.at(i, j), make_float4(x[0], x[1], x[2], x[3]));
  }

  const LargeJob& job_;
  const Matrix d_;
  const ConstMatrix c_;
  const int64_t row_, col_;
  LargeStaging& staging_;
};

// A thread's sums form eight blocks of 4 x 4.
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

// Stores the sums of a thread of the first group.
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

// Byte offset in the ring of a thread's e-th sum, for thread `of_group` of group `group`. Blocks of a cluster exchange
// sums there.
template <class Shape>
__device__ __forceinline__ constexpr int place_in_ring(int group, int e, int of_group) {
  return ((group * kLargeSums + e) * Shape::kGroupThreads + of_group) * static_cast<int>(sizeof(float));
}

// Adds up again the sums that are not finite, in 4 x 4 blocks `first`, `first` + `step`, ... of the thread's place in
// the tile. Results replace the thread's own part in the ring, which no other thread reads.
template <class Shape>
__device__ __noinline__ void redo_blocks(const LargeJob& job, int tile, char* ring, int t, int first, int step) {
  const int group = t / Shape::kGroupThreads, of_group = t % Shape::kGroupThreads;
  const TileIndex at = tile_at(tile, job.tiles_m, job.tiles_n, kTilesTogether);
  const LargePlace place(of_group);
#pragma unroll 1
  for (int x = first * 16; x < kLargeSums; x = x % 16 == 15 ? x + 1 + (step - 1) * 16 : x + 1) {
    const int row = first_row(x / 16) + x % 16 / 4, col = first_col(x / 16) + x % 4, e = row * Large::TN + col;
    const int64_t i = int64_t{at.row} * Shape::kRows + place.row + LargePlace::row_on(row);
    const int64_t j = int64_t{at.col} * Shape::kCols + place.col + LargePlace::col_on(col);
    const auto part = [&](int n) {
      return hopper::load_in_cluster(hopper::map_to_rank(
          hopper::shared_address(ring) + place_in_ring<Shape>(n % Shape::kGroups, e, of_group), n / Shape::kGroups));
    };
    float sum = part(0);
#pragma unroll 1
    for (int n = 1; n < step; ++n) sum += part(n);
    if (!is_finite(sum) && job.slices == 1 && job.p.d.contains(i, j)) sum = in_order(job.p, at.batch, i, j);
    *reinterpret_cast<float*>(ring + place_in_ring<Shape>(group, e, of_group)) = sum;
  }
}

// Stores a cluster's only tile, whose k is split over the cluster's blocks and their groups. All sums go to the ring,
// which is free by then. The threads at the same place of the tile, one in each group and block, divide that place's
// sums: each adds up and stores some of them.
template <class Shape, int BLOCKS>
__device__ __forceinline__ void store_cluster_tile(const LargeJob& job, int tile, const LargeSums& sum, char* ring,
                                                   int t) {
  constexpr int kParts = BLOCKS * Shape::kGroups;
  constexpr int kEach = (kSumBlocks + kParts - 1) / kParts;
  static_assert(Large::TM * Large::TN * Large::kThreads * 4 <= Shape::kRingBytes);
  const int group = t / Shape::kGroupThreads, of_group = t % Shape::kGroupThreads;
  const auto place = [of_group](int group, int e) { return place_in_ring<Shape>(group, e, of_group); };
  hopper::sync_some(2, Large::kThreads);
#pragma unroll
  for (int e = 0; e < Large::TM * Large::TN; ++e)
    *reinterpret_cast<float*>(ring + place(group, e)) = sum[e / Large::TN][e % Large::TN];
  hopper::arrive_cluster();
  hopper::wait_cluster();
  const int first = hopper::cluster_rank() * Shape::kGroups + group;
  float total[kEach][4][4], zero = 0;
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
        part[i][e] = hopper::load_in_cluster(from + (e / 4 * Large::TN + e % 4) * Shape::kGroupThreads * 4);
    }
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      float& sum = total[n][e / 4][e % 4];
      sum = part[0][e];
#pragma unroll
      for (int i = 1; i < kParts; ++i) sum += part[i][e];
      zero = fmaf(sum, 0.0f, zero);
    }
  }
  if (__any_sync(~0u, zero != 0)) {
    redo_blocks<Shape>(job, tile, ring, t, first, kParts);
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int b = first + n * kParts, origin = first_row(b) * Large::TN + first_col(b);
      if (kSumBlocks % kParts && b >= kSumBlocks) break;
#pragma unroll
      for (int e = 0; e < 16; ++e)
        total[n][e / 4][e % 4] =
            *reinterpret_cast<const float*>(ring + place(group, origin + e / 4 * Large::TN + e % 4));
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
  hopper::wait_cluster();  // other blocks may still be reading this block's ring
}

}  // namespace sgemm::ieee
