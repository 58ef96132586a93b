// Products with many rows, of few columns and a short k, split on the way: bound by reading A and writing D once.
//
// Idea:   a block keeps a panel of B in shared memory, split, all of its k. Its warps stream rows of A past it. A lane
//         reads just those elements of A that it holds in the tensor cores' products, for which the order of rows,
//         columns and k makes no difference: nothing goes through shared memory, no warp waits for another, and a row's
//         scale is known before it is split. The next rows are on their way while a tile is multiplied and stored.
// Layout: lane 4 g + t has rows 2 g and 2 g + 1 of 16, four elements of each 16 of k, and four of each 16 columns.
// Bound:  memory; from about 64 columns on also what a lane does for the tensor cores.
#pragma once
#include "tall_redo.cuh"

namespace sgemm::split {

// The block's panel of B: for each 16 columns and 16 of k two blocks of 8 columns, a lane's planes of one side by side.
template <int STEPS>
struct TallPanel {
  uint4* planes;
  uint32_t* words;   // in the order of lanes' columns
  float* of_others;  // what a column's sum makes of small elements of A, likewise

  __device__ __forceinline__ TallPanel(char* memory, int cols)
      : planes(reinterpret_cast<uint4*>(memory)),
        words(reinterpret_cast<uint32_t*>(memory + cols * STEPS * TallTile::kStep * 4)),
        of_others(reinterpret_cast<float*>(words + cols)) {}

  // `at` counts blocks of 8 columns.
  __device__ __forceinline__ uint4* block(int at, int s) const {
    return planes + ((at / 2 * STEPS + s) * 2 + at % 2) * 32 + threadIdx.x % 32;
  }

  // Columns from n0 on. Whether all of them are plain, once it is filled.
  template <TallReads READS>
  __device__ __forceinline__ bool fill(const TallJob& job, const ConstMatrix& b, int64_t n0) const {
    const int lane = threadIdx.x % 32, c = lane / 4, first_k = place_of(READS, lane % 4, 0);
    bool plain = true;
#pragma unroll 1
    for (int at = threadIdx.x / 32; at < job.cols / 8; at += blockDim.x / 32) {
      const int of_lane = c / 2, e = at % 2 * 2 + c % 2;  // whose column it is
      const int64_t col = n0 + at / 2 * 16 + place_of(job.stores, of_lane, e);
      const float* const from = b.data + col * b.col + first_k * b.row;
      const int k_left = col < b.cols ? static_cast<int>(b.rows) - first_k : 0;
      LineElements<STEPS> x;
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int q = s * TallTile::kStep + place_of(READS, 0, i);
          x[s][i] = q < k_left ? from[q * b.row] : 0.0f;
        }
      const uint32_t largest = largest_magnitude(x);
      const int exponent = row_exponent<Fp16x3>(largest);
      const float factor = power_of_two(-exponent);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const QuadPlanes<Fp16x3> split(scaled(x[s], factor));
        *block(at, s) = make_uint4(split.xy[0], split.zw[0], split.xy[1], split.zw[1]);
      }
      const LineGuard guard = line_guard<Fp16x3>(x, factor);
      const uint32_t word = row_word<Fp16x3>(largest, exponent, guard.small);
      if (lane % 4 == 0) {
        words[at / 2 * 16 + of_lane * 4 + e] = word;
        of_others[at / 2 * 16 + of_lane * 4 + e] = guard.sum * (Fp16x3::kSumThreshold * kSumRounding);
      }
      plain = plain && is_plain(word);
    }
    return __syncthreads_and(plain);
  }
};

// 16 rows' scaled sums in 16 of the panel's columns: a lane's four of either row. `b` is where the lane's planes begin.
template <int STEPS>
__device__ __forceinline__ void multiply_rows(const RowPlanes<STEPS>& a, const uint4* b, float (&sums)[8]) {
  float fresh[2][4], sum[2][4], cross[2][2][4] = {};  // [a block of 8 columns]
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 of_col = b[(s * 2 + j) * 32];
      if (s % 2 == 0) fresh[j][0] = fresh[j][1] = fresh[j][2] = fresh[j][3] = 0;
      multiply<__half>(fresh[j], a.hi[0][s], a.hi[1][s], of_col.x, of_col.y);
      multiply<__half>(cross[j][0], a.hi[0][s], a.hi[1][s], of_col.z, of_col.w);
      multiply<__half>(cross[j][1], a.lo[0][s], a.lo[1][s], of_col.x, of_col.y);
    }
    if (s % 2 == 0 && s < STEPS - 1) continue;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[j][i] = s < 2 ? fresh[j][i] : sum[j][i] + fresh[j][i];
  }
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[i / 2 * 4 + j * 2 + i % 2] = fmaf(cross[j][0][i] + cross[j][1][i], Fp16x3::kCorrection, sum[j][i]);
}

template <int TILE, TallReads READS>
__global__ void __launch_bounds__(32 * kTallTiles[TILE].warps, 1) split_tall(const __grid_constant__ TallJob job) {
  constexpr int kSteps = kTallTiles[TILE].steps();
  constexpr int kPanelBytes = tall_panel_bytes(TILE, 1), kStagedBytes = tall_staged_bytes(1);  // a column
  extern __shared__ __align__(16) char panel_memory[];
  hopper::launch_dependents();
  const Problem& p = job.p;
  const uint32_t index = blockIdx.x / job.groups, entry = index / job.tiles_n;
  const int64_t n0 = int64_t{index - entry * job.tiles_n} * job.cols;
  const int cols = static_cast<int>(min(int64_t{job.cols}, p.n - n0));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // The panel's warps take tiles in turn.
  const uint32_t warps = blockDim.x / 32, stride = job.groups * warps;
  uint32_t tile = (blockIdx.x - index * job.groups) * warps + warp;
  const TallPanel<kSteps> panel(panel_memory, job.cols);
  char* const staged = panel_memory + job.cols * kPanelBytes + warp * kStagedBytes * job.cols;
  __shared__ float rows_of_others[kTallTiles[TILE].warps][TallTile::kRows];
  const TallOutput output(job, entry, n0, reinterpret_cast<float*>(staged), rows_of_others[warp]);

  const ConstMatrix a = p.a.matrix(entry);
  const int first_k = place_of(READS, lane % 4, 0);
  const float* const from = a.data + first_k * a.col;
  LineElements<kSteps> x[2];
  const auto read = [&] {
    const int64_t row = int64_t{tile} * TallTile::kRows + lane / 4 * 2;
    read_rows<READS, kSteps>(x, from + row * a.row, a, p.m - row, static_cast<int>(p.k) - first_k);
  };
  hopper::wait_for_predecessor();
  read();
  const bool plain_cols = panel.template fill<READS>(job, p.b.matrix(entry), n0) && job.plain;

  // Tiles of which a group of columns is uncertain wait in a list until all others are done: a call in the loop would
  // cost it registers.
  const uint32_t turns = (job.tiles_m + stride - 1) / stride;
  TallEntry* const list = job.lists + (int64_t{blockIdx.x} * warps + warp) * turns;
  uint32_t listed = 0;
#pragma unroll 1
  while (tile < job.tiles_m) {
    RowPlanes<kSteps> planes;
    uint32_t words[2];
    const bool some_small = split_rows<kSteps>(x, planes, words, rows_of_others[warp]);
    const bool plain = __all_sync(~0u, plain_cols && is_plain(words[0]) && is_plain(words[1]));
    const TallRows rows = output.begin_tile(int64_t{tile} * TallTile::kRows, words);
    uint64_t uncertain = 0;  // groups of columns, a bit each
    tile += stride;
    read();
    const uint4* b = panel.block(0, 0);
#pragma unroll 1
    for (int first = 0; first < cols; first += 16, b += kSteps * 64) {
      float sums[8];
      multiply_rows<kSteps>(planes, b, sums);
      const int at = first + lane % 4 * 4;
      bool certain = true;
      if (__builtin_expect(plain, true))
        output.scale(rows, *reinterpret_cast<const uint4*>(panel.words + at), sums);
      else
        certain = output.certify(rows, first, &panel.words[at], &panel.of_others[at], some_small, sums);
      if (__builtin_expect(job.more, false) && certain) certain = __all_sync(~0u, output.add(rows, first, sums) == 0);
      if (certain)
        output.store(rows, first, sums);
      else
        uncertain |= uint64_t{1} << first / TallTile::kCols;
    }
    if (__builtin_expect(uncertain == 0, true))
      output.end_tile(rows);
    else
      list[listed++] = {is_staged(job.stores) ? ~uint64_t{0} : uncertain, tile - stride};
  }
  if (__builtin_expect(listed != 0, false))
    redo_tiles<READS, kSteps>(job, entry, n0, reinterpret_cast<float*>(staged), panel.words, list, listed);
}

}  // namespace sgemm::split
