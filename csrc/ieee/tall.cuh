// Products with many rows, few columns and a short k: bound by reading A and writing D once.
//
// Idea:   a block keeps a panel of B in shared memory, with all of its k. Each warp streams rows of A past the panel
//         through its own ring, without waiting for other warps. The next rows' reads are in flight while a tile is
//         multiplied and stored.
// Layout: a warp has 64 rows. A's panel has the layout of warp_panel.cuh, B's panel consists of rows of n.
// Reads:  any strides, 16 bytes at a time if alignment allows.
// Bound:  memory; from about 32 columns and a k of 64 on the FFMA pipe.
#pragma once
#include "../gpu/dependent_launch.cuh"
#include "../epilogue/epilogue.cuh"
#include "../epilogue/in_order.cuh"
#include "tall.h"
#include "warp_panel.cuh"

namespace sgemm::ieee {

struct TallJob {
  Problem p;
  int depth;  // k, rounded up to whole steps
  uint32_t tiles_m, tiles_n;
  uint32_t groups;  // blocks that share the rows of one panel of B
  bool a_vector, b_vector;
  TallStores stores;
};

// Starts to copy COLS columns of B from n0 on, with all of k and zeros outside. Single-element copies of a warp cover 8
// x 4 elements, which suits both layouts.
template <int COLS>
__device__ __forceinline__ void load_panel(float* to, const TallJob& job, const ConstMatrix& b, int64_t n0) {
  const int rows = static_cast<int>(b.rows), cols = static_cast<int>(min(int64_t{COLS}, b.cols - n0));
  const float* const from = b.data + n0 * b.col;
  constexpr int kQuads = COLS / 4;  // quads per row
  if (job.b_vector) {
    for (int x = threadIdx.x; x < job.depth * kQuads; x += Tall::kThreads) {
      const int q = x / kQuads, col = x % kQuads * 4;
      copy_async<16>(to + q * COLS + col, from + q * b.row + col, q < rows ? 4 * max(0, min(4, cols - col)) : 0, true);
    }
  } else {
    const int lane = threadIdx.x % 32;
    for (int x = threadIdx.x / 32; x < job.depth / 8 * kQuads; x += Tall::kWarps) {
      const int q = x / kQuads * 8 + lane % 8, col = x % kQuads * 4 + lane / 8;
      copy_async<4>(to + q * COLS + col, from + q * b.row + col * b.col, q < rows && col < cols ? 4 : 0);
    }
  }
  commit_copies();
}

// Recomputes the elements that are not finite in a tile that the warp has stored: rows x cols elements from (m0, n0)
// on.
static __device__ __noinline__ void redo_tile(const Problem& p, int64_t entry, int64_t m0, int64_t n0, int rows,
                                              int cols) {
  const Matrix d = p.d.matrix(entry);
  __syncwarp();
  for (int x = threadIdx.x % 32; x < rows * cols; x += 32) {
    const int64_t i = m0 + x / cols, j = n0 + x % cols;
    if (!is_finite(*d.at(i, j))) *d.at(i, j) = in_order(p, entry, i, j);
  }
}

// Stores a thread's sums, for tiles in the block's columns from n0 on. ADDED: adds them to the sum of the previous
// pieces.
template <class A, class B, int TM, int TN, bool ADDED>
class TallEpilogue {
 public:
  static constexpr int kStagedFloats = tall_staged(B::kRows);

  __device__ __forceinline__ TallEpilogue(const TallJob& job, uint32_t entry, int64_t n0, float* staging)
      : job_(job),
        entry_(entry),
        n0_(n0),
        staging_(staging),
        lane_m_(threadIdx.x % 8),
        lane_n_(threadIdx.x % 32 / 8),
        cols_(static_cast<int>(min(int64_t{B::kRows}, job.p.n - n0))),
        to_(job.p.d.matrix(entry).at(0, n0)),
        add_(job.p.c.matrix(entry).at(0, n0)) {}

  // Stores the tile's rows from m0 on, of which `rows` are inside.
  __device__ __forceinline__ void store(int64_t m0, int rows, const float (&sums)[TM][TN]) const {
    Place place = {to_ + m0 * job_.p.d.row, add_ + m0 * job_.p.c.row, rows};
    const bool whole = rows == A::kRows && cols_ == B::kRows;
    if (job_.stores == TallStores::kAlongN)
      whole ? store_along_n<true>(place, sums) : store_along_n<false>(place, sums);
    else if (job_.stores == TallStores::kAlongM)
      whole ? store_along_m<true>(place, sums) : store_along_m<false>(place, sums);
    else if (job_.stores == TallStores::kRows)
      store_rows(place, sums);
    else if (job_.stores == TallStores::kColumns)
      store_columns(place, sums);
    else
      store_singles(place, sums);
    if (ADDED && __any_sync(~0u, place.infinite)) redo_tile(job_.p, entry_, m0, n0_, min(rows, int{A::kRows}), cols_);
  }

 private:
  static constexpr int kRows = A::kWide, kCols = B::kWide;  // rows and columns that a thread has side by side

  // Destination of a tile.
  struct Place {
    float* to;
    const float* add;
    int rows;
    bool infinite = false;  // true if one of the thread's elements is not finite
  };

  __device__ __forceinline__ int row(int i) const { return A::row(lane_m_, i); }
  __device__ __forceinline__ int col(int l) const { return B::row(lane_n_, l); }
  __device__ __forceinline__ float value(Place& at, float sum, int row, int col) const {
    const Problem& p = job_.p;
    const float* const c = at.add + row * p.c.row + col * p.c.col;
    if constexpr (ADDED) {
      const float value = *c + sum;
      at.infinite |= !is_finite(value);
      return value;
    }
    return add_c(p, p.alpha * sum, c);
  }

  template <bool WHOLE>
  __device__ __forceinline__ void store_along_n(Place& at, const float (&sums)[TM][TN]) const {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int l = 0; l < TN; l += kCols) {
        if (!WHOLE && !(row(i) < at.rows && col(l) < cols_)) continue;
        alignas(16) float values[kCols];
#pragma unroll
        for (int e = 0; e < kCols; ++e) values[e] = value(at, sums[i][l + e], row(i), col(l + e));
        using Wide = typename B::Wide;
        *reinterpret_cast<Wide*>(at.to + row(i) * job_.p.d.row + col(l)) = *reinterpret_cast<const Wide*>(values);
      }
  }

  template <bool WHOLE>
  __device__ __forceinline__ void store_along_m(Place& at, const float (&sums)[TM][TN]) const {
#pragma unroll
    for (int l = 0; l < TN; ++l)
#pragma unroll
      for (int i = 0; i < TM; i += kRows) {
        if (!WHOLE && !(row(i) < at.rows && col(l) < cols_)) continue;
        alignas(16) float values[kRows];
#pragma unroll
        for (int e = 0; e < kRows; ++e) values[e] = value(at, sums[i + e][l], row(i + e), col(l));
        *reinterpret_cast<float4*>(at.to + row(i) + col(l) * job_.p.d.col) = *reinterpret_cast<const float4*>(values);
      }
  }

  // Stores elements one by one through shared memory, eight rows at a time: neighbouring lanes store neighbours of a
  // row.
  __device__ __forceinline__ void store_rows(Place& at, const float (&sums)[TM][TN]) const {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int l = 0; l < TN; ++l) staging_[lane_m_ * B::kRows + col(l)] = sums[i][l];
      __syncwarp();
#pragma unroll 2
      for (int x = threadIdx.x % 32; x < 8 * B::kRows; x += 32) {
        const int row = A::row(x / B::kRows, i), col = x % B::kRows;
        if (row >= at.rows || col >= cols_) continue;
        at.to[row * job_.p.d.row + col] = value(at, staging_[x], row, col);
      }
      __syncwarp();
    }
  }

  // The same along the columns: 32 rows of four columns at a time.
  __device__ __forceinline__ void store_columns(Place& at, const float (&sums)[TM][TN]) const {
    constexpr int kPitch = kRows == 1 ? kTallPitch : 33;  // lanes write to different banks
    static_assert(TM % 4 == 0 && kPitch <= kTallPitch);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TM; i += 4)
#pragma unroll
      for (int l = 0; l < TN; ++l) {
#pragma unroll
        for (int e = 0; e < 4; ++e) staging_[lane_n_ * kPitch + row(i + e) - 8 * i] = sums[i + e][l];
        __syncwarp();
        const int row = 8 * i + lane;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int col = B::row(j, l);
          if (row < at.rows && col < cols_)
            at.to[row + col * job_.p.d.col] = value(at, staging_[j * kPitch + lane], row, col);
        }
        __syncwarp();
      }
  }

  __device__ __forceinline__ void store_singles(Place& at, const float (&sums)[TM][TN]) const {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int l = 0; l < TN; ++l)
        if (row(i) < at.rows && col(l) < cols_)
          at.to[row(i) * job_.p.d.row + col(l) * job_.p.d.col] = value(at, sums[i][l], row(i), col(l));
  }

  const TallJob& job_;
  const uint32_t entry_;
  const int64_t n0_;
  float* const staging_;
  const int lane_m_, lane_n_, cols_;
  float* const to_;
  const float* const add_;
};

template <int TILE, bool A_ALONG_K, bool ADDED>
struct TallShape {
  static constexpr TallTile kTile = kTallTiles[TILE];
  using Reader = WarpReader<A_ALONG_K, kTile.tm, 8>;
  using A = typename Reader::Panel;
  using B = WarpPanel<false, kTile.tn, 4>;
  using Output = TallEpilogue<A, B, kTile.tm, kTile.tn, ADDED>;
  static constexpr int kWarpFloats = kTile.stages * A::kFloats;
  static_assert(A::kRows == kTile.rows() && Tall::BK == kWarpDepth);
};

template <int TILE, bool A_ALONG_K, bool ADDED>
__global__ void __launch_bounds__(Tall::kThreads, kTallTiles[TILE].blocks) tall(const __grid_constant__ TallJob job) {
  using S = TallShape<TILE, A_ALONG_K, ADDED>;
  using A = typename S::A;
  using B = typename S::B;
  using Output = typename S::Output;
  constexpr int TM = S::kTile.tm, TN = S::kTile.tn, kDepth = kWarpDepth, kStages = S::kTile.stages;
  extern __shared__ __align__(16) float memory[];
  const Problem& p = job.p;
  const int k = static_cast<int>(p.k);
  const uint32_t panel = blockIdx.x / job.groups, entry = panel / job.tiles_n;
  const int64_t n0 = int64_t{panel - entry * job.tiles_n} * B::kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lane_m = lane % 8, lane_n = lane / 8;
  // The warps of all of the panel's blocks take tiles in turn.
  const uint32_t stride = job.groups * Tall::kWarps;
  uint32_t tile = (blockIdx.x - panel * job.groups) * Tall::kWarps + warp;
  float* const ring = memory + job.depth * B::kRows + warp * S::kWarpFloats;

  const auto rows_left = [&](uint32_t index) {
    return static_cast<int>(min(int64_t{A::kRows}, p.m - int64_t{index} * A::kRows));
  };
  typename S::Reader reader(p.a.data + p.a.batch.offset(entry) + int64_t{tile} * A::kRows * p.a.row, p.a.row, p.a.col,
                            rows_left(tile), job.a_vector, false, kDepth);
  const int64_t to_next_tile = int64_t{stride} * A::kRows * p.a.row - job.depth * p.a.col;
  uint32_t next = tile;  // next tile to be read
  int begin = 0;         // first k of its next step
  const auto read = [&](float* stage) {
    if (next < job.tiles_m) {
      reader.next(stage, min(kDepth, k - begin));
      begin += kDepth;
      if (begin >= k) {
        begin = 0;
        next += stride;
        reader.move(to_next_tile, rows_left(next));
      }
    }
    commit_copies();
  };
  wait_for_predecessor();
  load_panel<B::kRows>(memory, job, p.b.matrix(entry), n0);
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) read(ring + stage * A::kFloats);
  wait_copies<kStages>();
  __syncthreads();  // B has arrived

  const Output output(job, entry, n0,
                      memory + job.depth * B::kRows + Tall::kWarps * S::kWarpFloats + warp * Output::kStagedFloats);
  float* stage = ring;
#pragma unroll 1
  for (; tile < job.tiles_m; tile += stride) {
    float acc[TM][TN] = {};
    const float* b = memory;
#pragma unroll 1
    for (int left = k; left > 0; left -= kDepth, b += kDepth * B::kRows) {
      wait_copies<kStages - 1>();
      __syncwarp();
      const int depth = min(kDepth, left);
#pragma unroll 1
      for (int q = 0; q < depth; q += 4) {  // unrolled, it would not fit in the instruction cache
        float x[4][TM];
        A::read(x, stage, lane_m, q);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float y[TN];
          B::read(y, b, lane_n, q + j);
#pragma unroll
          for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int l = 0; l < TN; ++l) {
              const int col = i % 2 ? TN - 1 - l : l;  // alternating directions: two FFMAs in a row share a register
              acc[i][col] += x[j][i] * y[col];
            }
        }
      }
      __syncwarp();
      read(stage);
      stage = stage == ring + (kStages - 1) * A::kFloats ? ring : stage + A::kFloats;
    }
    output.store(int64_t{tile} * A::kRows, rows_left(tile), acc);
  }
  launch_dependents();  // late: the next kernel's blocks go to SMs whose blocks have ended
}

}  // namespace sgemm::ieee
