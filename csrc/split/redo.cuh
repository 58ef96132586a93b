// What the guard marked, computed again in float32 from the original operands.
//
// Idea:   a block's consumers do this behind all its tiles; nothing happens if none has a mark. A tile with a few
//         marked elements has them redone one by one, a dot product for each warp; one with many is computed as a
//         whole, and the marked elements are stored.
#pragma once
#include "../common/activation.h"
#include "job.h"
#include "redone.cuh"
#include "tile.cuh"

namespace sgemm::split {

constexpr uint32_t kFew = 64;  // dot products take as long as the whole tile at about this many elements
constexpr int kRedoStep = 8;   // of k
constexpr int kRedoPart = 64;  // of k: its sum is added to those before, as the tensor cores' is

struct RedoShared {
  uint32_t count;
  uint32_t marks[kTile][kTile / 32];  // a bit an element
  float a[kRedoStep][kTile + 4], b[kRedoStep][kTile + 4];
  float total[64][kConsumers];  // each thread's own
};

// A tile's first element.
struct Corner {
  int batch;
  int64_t row, col;
};

__device__ __forceinline__ void store_redone(const Job& job, int batch, int64_t i, int64_t j, float sum) {
  float value = job.p.alpha * sum;
  if (job.p.beta != 0) value += job.p.beta * *job.p.c.matrix(batch).at(i, j);
  *job.p.d.matrix(batch).at(i, j) = activated(job.p.activation, value);
}

// Each thread reads the masks that it wrote.
template <class Shape>
__device__ __forceinline__ void read_marks(const Job& job, int index, uint32_t rank, int t, RedoShared& shared) {
  sync_consumers();  // the tile before is done
  for (int i = t; i < kTile * kTile / 32; i += kConsumers) shared.marks[0][i] = 0;
  if (t == 0) shared.count = 0;
  sync_consumers();
  const uint32_t mine = job.marks[(int64_t{index} * 4 + rank) * 8 + t / 32];
  if (t % 32 == 0) atomicAdd(&shared.count, mine >> 8);
#pragma unroll 1
  for (int slot = 0; slot < Shape::kSlots; ++slot) {
    if (!(mine >> slot & 1)) continue;
    uint32_t mask = job.masks[(int64_t{index} * Shape::kSlots + slot) * kConsumers + t];
    for (; mask; mask &= mask - 1) {
      const int row = marked_row<Shape>(t, __ffs(mask) - 1), col = marked_col<Shape>(t, slot);
      atomicOr(&shared.marks[row][col / 32], 1u << col % 32);
    }
  }
  sync_consumers();
}

__device__ __forceinline__ void redo_elements(const Job& job, const Corner& tile, int t, const RedoShared& shared) {
  const ConstMatrix a = job.p.a.matrix(tile.batch), b = job.p.b.matrix(tile.batch);
  const int64_t depth = job.depth(tile.batch);
#pragma unroll 1
  for (int i = t / 32; i < kTile * kTile / 32; i += kConsumers / 32) {
#pragma unroll 1
    for (uint32_t bits = shared.marks[0][i]; bits; bits &= bits - 1) {
      const int64_t row = tile.row + i * 32 / kTile, col = tile.col + i * 32 % kTile + __ffs(bits) - 1;
      float sum = 0;
      for (int64_t q = t % 32; q < depth; q += 32) sum = fmaf(*a.at(row, q), *b.at(q, col), sum);
      for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      if (t % 32 == 0) store_redone(job, tile.batch, row, col, sum);
    }
  }
}

// All of 128 x 128 elements from the tile's first on: a smaller tile's neighbours are computed for nothing.
__device__ __forceinline__ void redo_tile(const Job& job, const Corner& tile, int t, RedoShared& shared) {
  const ConstMatrix a = job.p.a.matrix(tile.batch), b = job.p.b.matrix(tile.batch);
  const int64_t row0 = tile.row, col0 = tile.col, depth = job.depth(tile.batch);
  const int row = t / 16 * 8, col = t % 16 * 8;
  const auto marked = [&](int i, int j) { return shared.marks[row + i][(col + j) / 32] >> (col + j) % 32 & 1; };
  float acc[8][8] = {};
#pragma unroll 1
  for (int e = 0; e < 64; ++e) shared.total[e][t] = 0;
#pragma unroll 1
  for (int64_t q0 = 0; q0 < depth; q0 += kRedoStep) {
#pragma unroll
    for (int i = t; i < kRedoStep * kTile; i += kConsumers) {
      // Neighbouring threads read neighbours in memory.
      const int qa = a.col == 1 ? i % kRedoStep : i / kTile, ia = a.col == 1 ? i / kRedoStep : i % kTile;
      const int qb = b.row == 1 ? i % kRedoStep : i / kTile, jb = b.row == 1 ? i / kRedoStep : i % kTile;
      shared.a[qa][ia] = q0 + qa < depth && row0 + ia < a.rows ? *a.at(row0 + ia, q0 + qa) : 0.0f;
      shared.b[qb][jb] = q0 + qb < depth && col0 + jb < b.cols ? *b.at(q0 + qb, col0 + jb) : 0.0f;
    }
    sync_consumers();
    const int steps = depth - q0 < kRedoStep ? static_cast<int>(depth - q0) : kRedoStep;
#pragma unroll 1
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
    sync_consumers();
    if ((q0 + kRedoStep) % kRedoPart != 0 && q0 + kRedoStep < depth) continue;
#pragma unroll
    for (int e = 0; e < 64; ++e) {
      shared.total[e][t] += acc[e / 8][e % 8];
      acc[e / 8][e % 8] = 0;
    }
  }
#pragma unroll 1
  for (int e = 0; e < 64; ++e)
    if (marked(e / 8, e % 8)) store_redone(job, tile.batch, row0 + row + e / 8, col0 + col + e % 8, shared.total[e][t]);
}

// The marked elements of a tile that block `rank` of its cluster finished. `t` counts the consumers' threads.
template <class Shape>
__device__ __forceinline__ void redo(const Job& job, int index, uint32_t rank, int t, RedoShared& shared) {
  read_marks<Shape>(job, index, rank, t, shared);
  const uint32_t count = shared.count;
  if (count == 0) return;
  const TileIndex at = tile_at(job, index);
  const Corner tile = {at.batch, int64_t{at.row} * Shape::kRows, int64_t{at.col} * Shape::kCols};
  if (count <= kFew)
    redo_elements(job, tile, t, shared);
  else
    redo_tile(job, tile, t, shared);
  if (t == 0) {
    atomicAdd(&redone_elements, static_cast<unsigned long long>(count));
    if (count > kFew) atomicAdd(&redone_tiles, 1ull);
  }
}

}  // namespace sgemm::split
