// A tile's marked elements computed again on the tensor cores, split into three bfloat16, which have float32's range.
//
// Idea:   the consumers do all of it: each thread copies float32s to shared memory a step ahead, splits its own of the
//         next step while the tensor cores multiply those of this one, and adds up. The scales are those of the first
//         try, 2^26 times finer; small elements are counted on the way and tested for as ever.
// Block:  of a tile that a cluster's blocks finished in parts, each computes the columns of its own part, all of k.
// Bound:  the tensor cores, six products a step; in parts, the threads that split.
#pragma once
#include "../common/activation.h"
#include "../common/async_copy.cuh"
#include "panel_products.cuh"
#include "tile.cuh"

namespace sgemm::split {

// A tile's first element.
struct Corner {
  int batch;
  int64_t row, col;
};

// The marked elements of a tile, in shared memory.
struct Marks {
  uint32_t bits[kTile][kTile / 32];  // one an element
  uint32_t words[2][kTile];          // of the tile's rows and columns
  uint32_t counts[2];

  __device__ __forceinline__ bool is_marked(int row, int col) const { return bits[row][col / 32] >> col % 32 & 1; }
  __device__ __forceinline__ void clear(int row, int col) { atomicAnd(&bits[row][col / 32], ~(1u << col % 32)); }
};
constexpr int kMarksBytes = 4096;
static_assert(sizeof(Marks) <= kMarksBytes);

// D's element from its sum times 2^exponent; not where D adds up pieces of k and overflows.
__device__ __forceinline__ bool store_redone(const Job& job, int batch, int64_t i, int64_t j, float sum, int exponent) {
  int of_alpha;
  const float alpha = frexpf(job.p.alpha, &of_alpha);
  return store_element(job.p, job.p.c.matrix(batch).at(i, j), job.p.d.matrix(batch).at(i, j),
                       unscaled(alpha * sum, exponent + of_alpha));
}

// Of a tile's rows all, of its columns those that block `rank` finished: COLS for each warpgroup if they share its rows
// (HIGH), else for each its own.
template <bool HIGH, int COLS>
struct RedoShape {
  static constexpr int kRows = HIGH ? 128 : 64, kCols = HIGH ? COLS : 2 * COLS;
  static constexpr int kSums = COLS / 2;
  static constexpr int kQuads = (kRows + kCols) * kStep / 4;  // of a step
  static constexpr int kBytesA = kRows * kRowBytes * kPairs<Bf16x6>, kBytesB = kCols * kRowBytes * kPairs<Bf16x6>;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kPitch = kCols + 1;  // of sums on their way out

  // The tile's column, of this shape's j-th.
  __device__ __forceinline__ static int column(int j, uint32_t rank) {
    return HIGH ? static_cast<int>(rank) * COLS + j : j / COLS * 64 + static_cast<int>(rank) * COLS + j % COLS;
  }
};

// Two stages of panels, float32s of the step behind, and what is known of rows and columns.
template <class R>
struct RedoMemory {
  alignas(1024) char stages[2][R::kStageBytes];
  float4 raw[R::kQuads];
  float scale[2][R::kRows + R::kCols];  // two factors: one may be too large for a float
  uint32_t small[R::kRows + R::kCols];
};

// One thread's quad of a step, four of k of a row; the order is that of memory.
template <class R>
struct RedoQuad {
  int row, k;      // of the operand
  const bool of_b;

  __device__ __forceinline__ RedoQuad(const Job& job, int x) : of_b(x >= R::kRows * kStep / 4) {
    const int i = of_b ? x - R::kRows * kStep / 4 : x, rows = of_b ? R::kCols : R::kRows;
    const bool along_k = of_b ? job.b.along_k : job.a.along_k;
    row = along_k ? i / (kStep / 4) : i % rows;
    k = (along_k ? i % (kStep / 4) : i / rows) * 4;
  }
};

template <class R>
__device__ __forceinline__ void copy_quads(const Job& job, const Corner& tile, uint32_t rank, int step, int t,
                                           float4* raw) {
  const int64_t depth = job.depth(tile.batch);
#pragma unroll 1
  for (int x = t; x < R::kQuads; x += kConsumers) {
    const RedoQuad<R> at(job, x);
    const Operand& operand = at.of_b ? job.b : job.a;
    const int64_t row = at.of_b ? tile.col + R::column(at.row, rank) : tile.row + at.row;
    const int64_t q = int64_t{step} * kStep + at.k, left = row < operand.size ? depth - q : 0;
    const float* from = operand.data + operand.batch.offset(tile.batch) + row * operand.stride + q * operand.k_stride;
    float* to = reinterpret_cast<float*>(raw + x);
    if (operand.along_k && operand.vector) {
      copy_async<16>(to, left > 0 ? from : operand.data, left > 0 ? 16 : 0);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        copy_async<4>(to + e, e < left ? from + e * operand.k_stride : operand.data, e < left ? 4 : 0);
    }
  }
  commit_copies();
}

template <class R>
__device__ __forceinline__ void split_quads(const Job& job, int t, RedoMemory<R>& memory, char* stage) {
#pragma unroll 1
  for (int x = t; x < R::kQuads; x += kConsumers) {
    const RedoQuad<R> at(job, x);
    const int row = at.row + (at.of_b ? R::kRows : 0);
    const float4 raw = memory.raw[x];
    const float first = memory.scale[0][row], second = memory.scale[1][row];
    const float4 v = make_float4(raw.x * first * second, raw.y * first * second, raw.z * first * second,
                                 raw.w * first * second);
    const uint32_t small = is_small<Bf16x6>(raw.x, v.x) + is_small<Bf16x6>(raw.y, v.y) + is_small<Bf16x6>(raw.z, v.z) +
                           is_small<Bf16x6>(raw.w, v.w);
    if (small) atomicAdd(&memory.small[row], small);
    const PanelPlace place = place_in_panel<false>(at.row, at.k);
    char* const panel = stage + (at.of_b ? R::kBytesA : 0);
    const int second_pair = (at.of_b ? R::kCols : R::kRows) * kRowBytes;
    const QuadPlanes<Bf16x6> planes(v);
    *reinterpret_cast<uint2*>(panel + place.first) = make_uint2(planes.xy[0], planes.zw[0]);
    *reinterpret_cast<uint2*>(panel + place.second) = make_uint2(planes.xy[1], planes.zw[1]);
    *reinterpret_cast<uint2*>(panel + place.first + second_pair) = make_uint2(planes.xy[2], planes.zw[2]);
  }
}

template <bool HIGH, int COLS>
__device__ __forceinline__ void redo_products(const Job& job, const Corner& tile, uint32_t rank, int t, Marks& marks,
                                           char* rest) {
  using R = RedoShape<HIGH, COLS>;
  constexpr int kFiner = Bf16x6::kTopExponent - Fp16x3::kTopExponent;
  RedoMemory<R>& memory = *reinterpret_cast<RedoMemory<R>*>(rest);
  const auto word = [&](int row) {
    return row < R::kRows ? marks.words[0][row] : marks.words[1][R::column(row - R::kRows, rank)];
  };
  const int steps = static_cast<int>((job.depth(tile.batch) + kStep - 1) / kStep);
  copy_quads<R>(job, tile, rank, 0, t, memory.raw);
  for (int row = t; row < R::kRows + R::kCols; row += kConsumers) {
    const int exponent = kFiner - word_exponent(word(row)), first = min(exponent, 127);
    memory.scale[0][row] = power_of_two(first);
    memory.scale[1][row] = power_of_two(exponent - first);
    memory.small[row] = 0;
  }
  wait_copies<0>();
  sync_consumers();
  split_quads<R>(job, t, memory, memory.stages[0]);
  if (steps > 1) copy_quads<R>(job, tile, rank, 1, t, memory.raw);
  hopper::fence_async_proxy();
  sync_consumers();

  const int warpgroup = t / 128;
  const uint32_t base = hopper::shared_address(memory.stages[0]);
  const PanelView<false, R::kRows> a(base, HIGH ? warpgroup : 0);
  const PanelView<false, R::kCols> b(base + R::kBytesA + (HIGH ? 0 : warpgroup * COLS * kRowBytes), 0);
  float sum[R::kSums], fresh[R::kSums];
#pragma unroll
  for (int e = 0; e < R::kSums; ++e) sum[e] = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const StageProducts<Bf16x6, PanelView<false, R::kRows>, PanelView<false, R::kCols>, R::kSums> products = {
        a, b, step % 2 * (R::kStageBytes / 16)};
    hopper::fence_registers(fresh);
    hopper::fence_products();
    products.corrections(fresh, false);
    products.main(fresh, true);
    if (step + 1 < steps) {
      wait_copies<0>();
      split_quads<R>(job, t, memory, memory.stages[(step + 1) % 2]);
      if (step + 2 < steps) copy_quads<R>(job, tile, rank, step + 2, t, memory.raw);
      __syncwarp();
    }
    hopper::wait_products<0>();
    hopper::fence_registers(fresh);
#pragma unroll
    for (int e = 0; e < R::kSums; ++e) sum[e] += fresh[e];
    hopper::fence_async_proxy();
    sync_consumers();
  }

  float* const sums = reinterpret_cast<float*>(memory.stages[0]);  // (kRows, kPitch)
  static_assert(R::kRows * R::kPitch * sizeof(float) <= sizeof memory.stages);
  const int row0 = (HIGH ? t / 32 : t / 32 % 4) * 16 + t % 32 / 4;
  const int col0 = (HIGH ? 0 : warpgroup * COLS) + t % 4 * 2;
#pragma unroll
  for (int e = 0; e < R::kSums; ++e) sums[(row0 + e / 2 % 2 * 8) * R::kPitch + col0 + e / 4 * 8 + e % 2] = sum[e];
  sync_consumers();
#pragma unroll 1
  for (int x = t; x < R::kRows * R::kCols; x += kConsumers) {
    const int i = x / R::kCols, j = x % R::kCols, col = R::column(j, rank);
    if (!marks.is_marked(i, col)) continue;
    const float sum = sums[i * R::kPitch + j];
    const float least = Bf16x6::kThreshold * static_cast<float>(memory.small[i] + memory.small[R::kRows + j]);
    const int exponent = word_exponent(marks.words[0][i]) + word_exponent(marks.words[1][col]) - 2 * kFiner;
    const bool certain = fabsf(sum) >= least && isfinite(sum);
    if (!certain || (isinf(unscaled(sum, exponent)) && !surely_overflows(sum, exponent))) continue;
    if (store_redone(job, tile.batch, tile.row + i, tile.col + col, sum, exponent)) marks.clear(i, col);
  }
}

template <class Shape>
__device__ __forceinline__ void redo_products(const Job& job, const Corner& tile, uint32_t rank, uint32_t blocks, int t,
                                              Marks& marks, char* rest) {
  constexpr bool kHigh = Shape::kRows == kTile;
  if constexpr (kHigh && Shape::kCols == kTile)
    if (blocks == 1) return redo_products<kHigh, 128>(job, tile, rank, t, marks, rest);
  if (blocks == (Shape::kHalfSize ? 1 : 2)) return redo_products<kHigh, 64>(job, tile, rank, t, marks, rest);
  if (blocks == (Shape::kHalfSize ? 2 : 4)) return redo_products<kHigh, 32>(job, tile, rank, t, marks, rest);
  if constexpr (Shape::kHalfSize) redo_products<kHigh, 16>(job, tile, rank, t, marks, rest);
}

}  // namespace sgemm::split
