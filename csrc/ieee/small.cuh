// Products of few tiles, bound by latency: from the launch to the first element, and from the last sum to memory.
//
// Idea:   small tiles occupy many SMs. The warps of a block and the blocks of a cluster share k, so each warp has only
//         a few steps. All reads of a warp are in flight at once, straight to shared memory, and a warp waits only for
//         its own reads. At the end the warps' sums are added up, then the blocks'.
// Long k: slices of k are separate products, which a second kernel adds up.
// Reads:  any strides, 16 bytes at a time if alignment allows. Elements that many blocks read go through the L1 cache:
//         these blocks request a line at the same time, and the L2 cache serves its requests one after the other.
#pragma once
#include "../gpu/cluster.cuh"
#include "../gpu/dependent_launch.cuh"
#include "small.h"
#include "store_tile.cuh"
#include "warp_panel.cuh"

namespace sgemm::ieee {

struct SmallJob {
  Problem p;
  int64_t part;  // k per block, a multiple of 4 so that no quad is cut
  bool sliced;   // the entries of d's batch are slices of k
  uint32_t tiles_m, tiles_n;
  bool a_vector, b_vector;  // can be read 16 bytes at a time
  bool a_shared, b_shared;  // read through the L1 cache
};

// TILE is an index into kSmallTiles.
template <int TILE, bool A_ALONG_K, bool B_ALONG_K>
struct SmallRing {
  static constexpr SmallTile kTile = kSmallTiles[TILE];
  using ReaderA = WarpReader<A_ALONG_K, kTile.tm, 8>;
  using ReaderB = WarpReader<B_ALONG_K, kTile.tn, 4>;
  static constexpr int kStageFloats = ReaderA::Panel::kFloats + ReaderB::Panel::kFloats;
  static constexpr int kWarpFloats = kTile.stages * kStageFloats;
  // After the loop the rings hold the warps' sums, with rows that begin in different banks.
  static constexpr int kSumPitch = kTile.cols() + 1, kSums = kTile.rows() * kSumPitch;
  static_assert(kSums <= kWarpFloats && Small::BK == kWarpDepth);
  static constexpr int kBytes = Small::kWarps * kWarpFloats * static_cast<int>(sizeof(float));
};

// SHARED: an operand may be read through the L1 cache. The code without it is shorter, which saves a twentieth of the
// smallest products' time.
template <int TILE, bool A_ALONG_K, bool B_ALONG_K, bool SHARED>
__global__ void __launch_bounds__(Small::kThreads, kSmallTiles[TILE].resident[A_ALONG_K][B_ALONG_K])
    small(const __grid_constant__ SmallJob job) {
  using R = SmallRing<TILE, A_ALONG_K, B_ALONG_K>;
  using A = typename R::ReaderA::Panel;
  using B = typename R::ReaderB::Panel;
  constexpr int TM = R::kTile.tm, TN = R::kTile.tn, kStages = R::kTile.stages;
  constexpr int kDepth = kWarpDepth, kWarps = Small::kWarps, kTurn = kWarps * kDepth;
  extern __shared__ __align__(16) float memory[];
  const Problem& p = job.p;
  const uint32_t rank = cluster::rank(), blocks = cluster::size();
  const uint32_t tile = blockIdx.x >> __popc(blocks - 1), of_rows = tile / job.tiles_n;
  const uint32_t entry = of_rows / job.tiles_m;
  const int64_t m0 = int64_t{of_rows - entry * job.tiles_m} * A::kRows;
  const int64_t n0 = int64_t{tile - of_rows * job.tiles_n} * B::kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lane_m = lane % 8, lane_n = lane / 8;
  // A block has a part of k; its warps take the steps in turn.
  const uint32_t slice = job.sliced ? entry : 0, matrix = entry - slice;
  const int64_t k0 = min(p.k, job.part * (slice * blocks + rank)), depth = min(p.k - k0, job.part);
  const int64_t first = k0 + warp * kDepth;
  const auto inside = [](int64_t left, int most) { return static_cast<int>(min(int64_t{most}, left)); };
  typename R::ReaderA a(p.a.data + p.a.batch.offset(matrix) + m0 * p.a.row + first * p.a.col, p.a.row, p.a.col,
                        inside(p.m - m0, A::kRows), job.a_vector, SHARED && job.a_shared, kTurn);
  typename R::ReaderB b(p.b.data + p.b.batch.offset(matrix) + n0 * p.b.col + first * p.b.row, p.b.col, p.b.row,
                        inside(p.n - n0, B::kRows), job.b_vector, SHARED && job.b_shared, kTurn);
  float* const ring = memory + warp * R::kWarpFloats;
  int64_t left = depth - warp * kDepth;  // k from the next step to be read to the end
  const auto read = [&](float* stage) {
    if (left > 0) {
      const int of_step = inside(left, kDepth);
      a.next(stage, of_step);
      b.next(stage + A::kFloats, of_step);
    }
    left -= kTurn;
    commit_copies();
  };
  wait_for_predecessor();
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) read(ring + stage * R::kStageFloats);

  float acc[TM][TN] = {}, long_sums[TM][TN] = {};
  float* stage = ring;
  int run = 0;
#pragma unroll 1
  for (int64_t k = warp * kDepth; k < depth; k += kTurn) {
    wait_copies<kStages - 1>();
    __syncwarp();
#pragma unroll
    for (int q = 0; q < kDepth; q += 4) {
      float x[4][TM], y[4][TN];
      A::read(x, stage, lane_m, q);
      B::read(y, stage + A::kFloats, lane_n, q);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int l = 0; l < TN; ++l) acc[i][l] += x[j][i] * y[j][l];
    }
    if (R::kTile.any_depth && ++run == kSmallRun) {
      run = 0;
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int l = 0; l < TN; ++l) end_chain(long_sums[i][l], acc[i][l]);
    }
    __syncwarp();
    read(stage);
    stage = stage == ring + (kStages - 1) * R::kStageFloats ? ring : stage + R::kStageFloats;
  }
  launch_dependents();  // late: the next kernel's blocks go to SMs whose blocks have ended
  wait_copies<0>();
  __syncthreads();  // the sums overwrite the rings

#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int l = 0; l < TN; ++l)
      memory[warp * R::kSums + A::row(lane_m, i) * R::kSumPitch + B::row(lane_n, l)] = long_sums[i][l] + acc[i][l];
  __syncthreads();
  const auto place = [&](int row, int col) { return memory + row * R::kSumPitch + col; };
  const auto of_block = [&](int row, int col) {
    const float* const sums = place(row, col);
    float total = sums[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) total += sums[w * R::kSums];
    return total;
  };
  if (blocks == 1) return store_tile<A::kRows, B::kRows, Small::kThreads>(p, job.sliced, entry, m0, n0, 0, 1, of_block);
  for (int x = threadIdx.x; x < A::kRows * B::kRows; x += Small::kThreads) {
    const int row = x / B::kRows, col = x % B::kRows;
    *place(row, col) = of_block(row, col);
  }
  store_cluster_tile<A::kRows, B::kRows, Small::kThreads>(p, job.sliced, entry, m0, n0, rank, blocks, place);
}

}  // namespace sgemm::ieee
