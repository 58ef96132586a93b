// What the guard marked, computed again in float32 from the original operands; and the sum of slices.
//
// Idea:   always launched, since only the device knows whether something is marked; without a mark it ends at once. A tile
//         with a few marked elements has them redone one by one, a dot product for each warp; one with many is computed as
//         a whole, and the marked elements are stored.
// Bound:  the launch, normally.
#pragma once
#include "../common/hopper.cuh"
#include "job.h"

namespace sgemm::split {

constexpr int kRedoThreads = 256;
constexpr uint32_t kFew = 64;  // dot products take as long as the whole tile at about this many elements
constexpr int kRedoStep = 8;   // of k

// Elements that the guard had redone, and tiles that were redone whole, on this device since the library was loaded.
__device__ unsigned long long redone_elements, redone_tiles;

struct RedoShared {
  uint32_t marks[kTile][kTile / 32];  // a bit an element
  float a[kRedoStep][kTile + 4], b[kRedoStep][kTile + 4];
};

__device__ __forceinline__ void store_redone(const Job& job, int batch, int64_t i, int64_t j, float sum) {
  float value = job.p.alpha * sum;
  if (job.p.beta != 0) value += job.p.beta * *job.p.c.matrix(batch).at(i, j);
  *job.p.d.matrix(batch).at(i, j) = value;
}

__device__ void read_marks(const Job& job, int index, RedoShared& shared) {
  const int t = threadIdx.x;
  for (int i = t; i < kTile * kTile / 32; i += kRedoThreads) shared.marks[0][i] = 0;
  __syncthreads();
  const uint32_t left = job.flags[2 * index];
#pragma unroll 1
  for (int quarter = 0; quarter < 4; ++quarter) {
    if (!(left >> (t / 32 * 4 + quarter) & 1)) continue;
    uint32_t mask = job.masks[(int64_t{index} * 4 + quarter) * kConsumers + t];
    for (; mask; mask &= mask - 1) {
      const int e = quarter * 16 + __ffs(mask) - 1, col = element_col(t, e);
      atomicOr(&shared.marks[element_row(t, e)][col / 32], 1u << col % 32);
    }
  }
  __syncthreads();
}

__device__ void redo_elements(const Job& job, const TileIndex& tile, const RedoShared& shared) {
  const ConstMatrix a = job.p.a.matrix(tile.batch), b = job.p.b.matrix(tile.batch);
  const int64_t depth = job.depth(tile.batch);
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < kTile * kTile / 32; i += kRedoThreads / 32) {
    for (uint32_t bits = shared.marks[0][i]; bits; bits &= bits - 1) {
      const int64_t row = int64_t{tile.row} * kTile + i * 32 / kTile;
      const int64_t col = int64_t{tile.col} * kTile + i * 32 % kTile + __ffs(bits) - 1;
      float sum = 0;
      for (int64_t q = lane; q < depth; q += 32) sum = fmaf(*a.at(row, q), *b.at(q, col), sum);
      for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      if (lane == 0) store_redone(job, tile.batch, row, col, sum);
    }
  }
}

__device__ void redo_tile(const Job& job, const TileIndex& tile, RedoShared& shared) {
  const ConstMatrix a = job.p.a.matrix(tile.batch), b = job.p.b.matrix(tile.batch);
  const int64_t row0 = int64_t{tile.row} * kTile, col0 = int64_t{tile.col} * kTile, depth = job.depth(tile.batch);
  const int t = threadIdx.x, row = t / 16 * 8, col = t % 16 * 8;
  float acc[8][8] = {};
  for (int64_t q0 = 0; q0 < depth; q0 += kRedoStep) {
    for (int i = t; i < kRedoStep * kTile; i += kRedoThreads) {
      // Neighbouring threads read neighbours in memory.
      const int qa = a.col == 1 ? i % kRedoStep : i / kTile, ia = a.col == 1 ? i / kRedoStep : i % kTile;
      const int qb = b.row == 1 ? i % kRedoStep : i / kTile, jb = b.row == 1 ? i / kRedoStep : i % kTile;
      shared.a[qa][ia] = q0 + qa < depth && row0 + ia < a.rows ? *a.at(row0 + ia, q0 + qa) : 0.0f;
      shared.b[qb][jb] = q0 + qb < depth && col0 + jb < b.cols ? *b.at(q0 + qb, col0 + jb) : 0.0f;
    }
    __syncthreads();
    const int steps = depth - q0 < kRedoStep ? static_cast<int>(depth - q0) : kRedoStep;
    for (int q = 0; q < steps; ++q) {
      float x[8], y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = shared.a[q][row + i];
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i] = shared.b[q][col + i];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (shared.marks[row + i][(col + j) / 32] >> (col + j) % 32 & 1)
        store_redone(job, tile.batch, row0 + row + i, col0 + col + j, acc[i][j]);
}

__global__ void __launch_bounds__(kRedoThreads) split_redo(const __grid_constant__ Job job) {
  __shared__ RedoShared shared;
  hopper::launch_dependents();
  hopper::wait_for_predecessor();
  if (*job.any == 0) return;
  for (int index = blockIdx.x; index < job.tiles; index += gridDim.x) {
    const uint32_t marked = job.flags[2 * index + 1];
    if (marked == 0) continue;
    read_marks(job, index, shared);
    const TileIndex tile = tile_at(job, index);
    if (marked <= kFew)
      redo_elements(job, tile, shared);
    else
      redo_tile(job, tile, shared);
    if (threadIdx.x == 0) {
      atomicAdd(&redone_elements, static_cast<unsigned long long>(marked));
      if (marked > kFew) atomicAdd(&redone_tiles, 1ull);
    }
    __syncthreads();
  }
}

// D = alpha * (the slices' sum, first to last) + beta * C.
__global__ void __launch_bounds__(256) split_sum(const float* partials, int64_t slices, Problem p) {
  hopper::wait_for_predecessor();
  const int64_t count = p.m * p.n;
  for (int64_t x = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; x < count; x += int64_t{gridDim.x} * blockDim.x) {
    float sum = 0;
    for (int64_t s = 0; s < slices; ++s) sum += partials[s * count + x];
    const int64_t i = x / p.n, j = x % p.n;
    float value = p.alpha * sum;
    if (p.beta != 0) value += p.beta * *p.c.at(i, j);
    *p.d.at(i, j) = value;
  }
}

}  // namespace sgemm::split
