// Subnormal elements of bfloat16 operands, which tensor cores align too coarsely: the search for them, and the redo.
//
// Why:    a tensor core treats a subnormal element as 2^-126 when it aligns a step's products. If that element meets a
//         large one, more of the other products is cut off than the bound allows.
// Idea:   idle warps of the product's kernel look for subnormal elements while panels are in shared memory; the tiles
//         that share a panel divide its search. If there is one, a kernel after the product computes all tiles again
//         whose rows or columns hold some, by chains of FMAs (chains.cuh). If D is to take C, with which D may share
//         memory, a kernel before the product searches instead. Then the product leaves D to the kernel after it if
//         there is a subnormal element.
// Flags:  each warp that searched writes one, which is not 0 if the warp found a subnormal element.
#pragma once
#include "../../epilogue/epilogue.cuh"
#include "../../epilogue/in_order.cuh"
#include "../../gpu/dependent_launch.cuh"
#include "../redo/chains.cuh"
#include "native16.h"

namespace sgemm::split {

// Returns bit 15 set if the lower bfloat16 is subnormal and not zero (1 to 0x7f without its sign), and bit 31 for the
// upper.
__device__ __forceinline__ uint32_t subnormals(uint32_t pair) {
  const uint32_t magnitudes = pair & 0x7fff7fffu;
  return (magnitudes + 0x7fff7fffu) & ~(magnitudes + 0x7f807f80u) & 0x80008000u;
}
__device__ __forceinline__ uint32_t subnormals(const uint4& eight) {
  return subnormals(eight.x) | subnormals(eight.y) | subnormals(eight.z) | subnormals(eight.w);
}

// Searches `count` neighbours, by a warp. Precondition: the first lies at a multiple of 16 bytes.
__device__ __forceinline__ uint32_t subnormals_of_line(const uint16_t* line, int64_t count) {
  uint32_t found = 0;
#pragma unroll 4
  for (int64_t q = threadIdx.x % 32 * 8; q < count; q += 32 * 8) {
    if (q + 8 <= count) {
      found |= subnormals(*reinterpret_cast<const uint4*>(line + q));
    } else {
      for (int64_t i = q; i < count; ++i) found |= subnormals(line[i]);
    }
  }
  return found;
}

// An operand as lines of neighbouring elements.
struct Lines16 {
  Matrix16 matrix;  // its rows are the lines
  int64_t count;    // matrices in memory: 1 if the batch shares one
  bool across;      // lines run along m, or n, instead of k
};

// Parameters of the kernels before and after the product.
struct SubnormalsJob {
  Problem p;
  Lines16 a, b;
  uint32_t* found;  // (flags)
  int flags;
};

__device__ __forceinline__ bool found_some(const uint32_t* found, int flags) {
  uint32_t some = 0;
  for (int i = threadIdx.x; i < flags; i += blockDim.x) some |= found[i];
  return __syncthreads_or(some != 0);
}

static_assert(kSearchFlags == kSearchBlocks * kConsumers / 32);

// Searches the operands before the product. Each warp writes a flag.
static __global__ void __launch_bounds__(kConsumers) find_subnormals(const __grid_constant__ SubnormalsJob job) {
  wait_for_predecessor();
  launch_dependents();
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32,
                warps = int64_t{gridDim.x} * blockDim.x / 32;
  uint32_t found = 0;
  for (const Lines16* x : {&job.a, &job.b})
    for (int64_t line = warp; line < x->count * x->matrix.rows; line += warps) {
      const int64_t entry = line / x->matrix.rows, row = line % x->matrix.rows;
      found |= subnormals_of_line(x->matrix.data + x->matrix.batch.offset(entry) + row * x->matrix.row, x->matrix.cols);
    }
  found = __reduce_or_sync(~0u, found);
  if (threadIdx.x % 32 == 0) job.found[warp] = found;
}

// Returns true if kTile rows of A, or columns of B, from `first` on hold subnormal elements. Called by the whole block.
__device__ __forceinline__ bool holds_subnormals(const Lines16& x, int64_t entry, int64_t first) {
  const Matrix16& matrix = x.matrix;
  const uint16_t* data = matrix.data + (x.count == 1 ? 0 : matrix.batch.offset(entry));
  const int64_t size = x.across ? matrix.cols : matrix.rows, own = min(size - first, int64_t{kTile});
  data += x.across ? first : first * matrix.row;
  const int64_t lines = x.across ? matrix.rows : own, count = x.across ? own : matrix.cols;
  uint32_t found = 0;
  for (int64_t line = threadIdx.x / 32; line < lines; line += kConsumers / 32)
    found |= subnormals_of_line(data + line * matrix.row, count);
  return __syncthreads_or(found != 0);
}

// Computes tiles again after the product: those with subnormal rows or columns, or all if D takes C.
static __global__ void __launch_bounds__(kConsumers) redo_subnormals(const __grid_constant__ SubnormalsJob job) {
  __shared__ ChainMemory memory;
  wait_for_predecessor();
  launch_dependents();
  if (!found_some(job.found, job.flags)) return;
  const Problem& p = job.p;
  const int64_t tiles_n = ceil_div(p.n, kTile), of_matrix = ceil_div(p.m, kTile) * tiles_n;
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < of_matrix * p.batch; tile += gridDim.x) {
    const int64_t entry = tile / of_matrix, in_matrix = tile % of_matrix;
    const int64_t row = in_matrix / tiles_n * kTile, col0 = in_matrix % tiles_n * kTile;
    if (p.beta == 0 && !holds_subnormals(job.a, entry, row) && !holds_subnormals(job.b, entry, col0)) continue;
    const ConstMatrix c = p.c.matrix(entry);
    const Matrix d = p.d.matrix(entry);
#pragma unroll 1
    for (int64_t col = col0; col < min(col0 + kTile, p.n); col += kChainCols) {
      tile_of_chains(lines_of(p, entry, row, col, p.k), memory, threadIdx.x, [&](int i, int j, float sum) {
        if (!is_finite(sum)) sum = in_order(p, entry, row + i, col + j);
        *d.at(row + i, col + j) = finished(p, p.alpha * sum, c.at(row + i, col + j));
      });
    }
  }
}

}  // namespace sgemm::split
