// Recomputes elements in float32: chains of 32 FMAs, which are added up in order of k.
//
// Order:  chain c holds the products of k = 32 c to 32 c + 31 and starts at 0. The total starts at 0 as well, and takes
//         the chains in order. A warp (element_of_chains) and a block (tile_of_chains) give the same bits.
// Error:  32 + ceil(k / 32) roundings at most, for any operands of float32's range.
// Values: a chain may overflow although the sum in order of k does not. So an element whose sum isn't finite is
//         computed once more in order of k, one FMA after the other.
#pragma once
#include "../../gpu/warpgroups.cuh"
#include "../../problem/elements.h"
#include "../plan/sizes.h"

namespace sgemm::split {

constexpr int kChainCols = 32;  // columns of a tile that a block computes at once

// A row of A, or a column of B, from its first k on. `step`: elements from one k to the next.
struct ElementLine {
  ElementPointer first;
  int64_t step;
};

// Computes an element in order of k, by a warp. Every lane returns the element.
static __device__ __noinline__ float element_in_order(const ElementLine& a, const ElementLine& b, int64_t depth) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll 1
  for (int64_t q = 0; q < depth; q += 32) {
    const bool inside = q + lane < depth;
    const float x = inside ? a.first[(q + lane) * a.step] : 0, y = inside ? b.first[(q + lane) * b.step] : 0;
    for (int i = 0; i < 32; ++i) sum = fmaf(__shfl_sync(~0u, x, i), __shfl_sync(~0u, y, i), sum);
    if (isnan(sum)) break;  // no later product changes it
  }
  return sum;
}

// Computes an element by a warp, a chain per lane. Every lane returns the element.
static __device__ __noinline__ float element_of_chains(const ElementLine& a, const ElementLine& b, int64_t depth) {
  constexpr int kAtOnce = 8;  // reads in flight: one at a time, each would wait for memory
  const int lane = threadIdx.x % 32;
  float total = 0;
#pragma unroll 1
  for (int64_t q0 = 0; q0 < depth; q0 += 32 * kChain) {
    const int64_t own = q0 + lane * kChain;
    float chain = 0;
#pragma unroll 1
    for (int i = 0; i < kChain; i += kAtOnce) {
      float x[kAtOnce], y[kAtOnce];
      const auto inside = [&](int e) { return own + i + e < depth; };
      read_elements(
          x, a.first, [&](int e) { return (own + i + e) * a.step; }, inside);
      read_elements(
          y, b.first, [&](int e) { return (own + i + e) * b.step; }, inside);
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) chain = fmaf(x[e], y[e], chain);
    }
    const int chains = static_cast<int>(min(ceil_div(depth - q0, kChain), int64_t{32}));
    for (int i = 0; i < chains; ++i) total += __shfl_sync(~0u, chain, i);
  }
  return isfinite(total) ? total : element_in_order(a, b, depth);
}

// ROWS lines of an operand in shared memory, kChain of k at a time. Element (k, row) lies at k * kPitch + row. Threads
// read neighbours in memory. They read the next chain's elements while this chain's are multiplied.
template <int ROWS>
class ChainPanel {
 public:
  static constexpr int kPitch = ROWS + 4, kFloats = kChain * kPitch;

  // `first`: the first line. `stride`: elements from one line to the next. `rows`: number of lines inside the operand.
  __device__ __forceinline__ ChainPanel(const ElementLine& first, int64_t stride, int64_t rows, int64_t depth, int t)
      : along_k_(first.step == 1 || stride != 1),
        row_(along_k_ ? t / kChain : t % ROWS),
        k_(along_k_ ? t % kChain : t / ROWS),
        rows_(static_cast<int>(min(rows, int64_t{ROWS})) - row_),
        k_left_(depth - k_),
        step_(first.step),
        apart_(along_k_ ? kConsumers / kChain * stride : kConsumers / ROWS * first.step),
        from_(first.first + (row_ * stride + k_ * first.step)) {}

  __device__ __forceinline__ void read() {
    read_elements(
        next_, from_, [&](int i) { return i * apart_; },
        [&](int i) {
          return along_k_ ? i * (kConsumers / kChain) < rows_ && k_left_ > 0
                          : rows_ > 0 && i * (kConsumers / ROWS) < k_left_;
        });
    from_ = from_ + kChain * step_;
    k_left_ -= kChain;
  }
  __device__ __forceinline__ void write(float* panel) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = row_ + (along_k_ ? i * (kConsumers / kChain) : 0);
      const int k = k_ + (along_k_ ? 0 : i * (kConsumers / ROWS));
      panel[k * kPitch + row] = next_[i];
    }
  }

 private:
  static constexpr int kOwn = ROWS * kChain / kConsumers;
  const bool along_k_;
  const int row_, k_, rows_;
  int64_t k_left_;
  const int64_t step_, apart_;
  ElementPointer from_;
  float next_[kOwn];
};

struct ChainMemory {
  alignas(16) float a[ChainPanel<kTile>::kFloats], b[ChainPanel<kChainCols>::kFloats];
};

// A tile's rows of A and columns of B. `a`, `b`: the first row and column. `rows`, `cols`: numbers of them from there
// to the operands' ends.
struct TileLines {
  ElementLine a, b;
  int64_t a_stride, b_stride, rows, cols, depth;
};

// Returns the lines of the elements from (row, col) on, for the first `depth` of k. If C is the sum of earlier pieces
// of k, the lines begin with the first piece.
__device__ __forceinline__ TileLines lines_of(const Problem& p, int64_t entry, int64_t row, int64_t col,
                                              int64_t depth) {
  const ElementMatrix a = matrix_of_a(p, entry), b = matrix_of_b(p, entry);
  const int64_t before = p.k_before;
  return {{a.at(row, -before), a.col}, {b.at(-before, col), b.row}, a.row, b.col, p.m - row, p.n - col, before + depth};
}

// Computes a tile of kTile x kChainCols by kConsumers threads, 4 x 4 elements each. Calls store(row, col, sum) for the
// elements inside. The sum may be Inf or NaN.
template <class Store>
__device__ __forceinline__ void tile_of_chains(const TileLines& lines, ChainMemory& memory, int t, const Store& store) {
  constexpr int kOwn = 4, kAcross = kChainCols / kOwn;
  const int row = t / kAcross * kOwn, col = t % kAcross * kOwn;
  ChainPanel<kTile> a(lines.a, lines.a_stride, lines.rows, lines.depth, t);
  ChainPanel<kChainCols> b(lines.b, lines.b_stride, lines.cols, lines.depth, t);
  float total[kOwn * kOwn] = {};
  a.read();
  b.read();
#pragma unroll 1
  for (int64_t q = 0; q < lines.depth; q += kChain) {
    sync_consumers();  // all threads have read the previous chain
    a.write(memory.a);
    b.write(memory.b);
    sync_consumers();
    a.read();
    b.read();
    float chain[kOwn * kOwn] = {};
#pragma unroll 8
    for (int k = 0; k < kChain; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(&memory.a[k * ChainPanel<kTile>::kPitch + row]);
      const float4 y = *reinterpret_cast<const float4*>(&memory.b[k * ChainPanel<kChainCols>::kPitch + col]);
      const float of_rows[kOwn] = {x.x, x.y, x.z, x.w}, of_cols[kOwn] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int e = 0; e < kOwn * kOwn; ++e) chain[e] = fmaf(of_rows[e / kOwn], of_cols[e % kOwn], chain[e]);
    }
#pragma unroll
    for (int e = 0; e < kOwn * kOwn; ++e) total[e] += chain[e];
  }
#pragma unroll 1
  for (int own = 0; own < kOwn * kOwn; ++own) {
    const int i = row + own / kOwn, j = col + own % kOwn;
    float sum = 0;  // total[own]; a runtime index would move the array to local memory
#pragma unroll
    for (int e = 0; e < kOwn * kOwn; ++e) sum = e == own ? total[e] : sum;
    if (i < lines.rows && j < lines.cols) store(i, j, sum);
  }
}

}  // namespace sgemm::split
