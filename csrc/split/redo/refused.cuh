// RefusedTile: the elements of a tile that the guard refused. store_redone(): stores a recomputed element.
#pragma once
#include "../../epilogue/epilogue.cuh"
#include "../format/row_scale.cuh"
#include "../plan/job.h"

namespace sgemm::split {

// A tile's first element.
struct Corner {
  int batch;
  int64_t row, col;
};

// The refused elements of a tile, in shared memory.
struct RefusedTile {
  uint32_t bits[kTile][kTile / 32];  // a bit per element
  TileScales row_scales;
  uint32_t inf_lines[2][kTile / 32];  // rows and columns that hold Inf, a bit each
  uint32_t counts[2];

  __device__ __forceinline__ bool is_refused(int row, int col) const { return bits[row][col / 32] >> col % 32 & 1; }
  // Returns the refused elements in the i-th uint32 of `bits` whose row and column hold no Inf.
  __device__ __forceinline__ uint32_t finite(int i) const {
    const int row = i / (kTile / 32);
    return inf_lines[0][row / 32] >> row % 32 & 1 ? 0 : bits[0][i] & ~inf_lines[1][i % (kTile / 32)];
  }
  __device__ __forceinline__ void clear(int row, int col) { atomicAnd(&bits[row][col / 32], ~(1u << col % 32)); }
};
constexpr int kRefusedBytes = 4096;
static_assert(sizeof(RefusedTile) <= kRefusedBytes);

// Stores an element. `sum`: its sum over all of k, earlier pieces included.
__device__ __forceinline__ void store_redone(const Job& job, int batch, int64_t i, int64_t j, float sum) {
  const Problem& p = job.p;
  const float* const c = p.c.matrix(batch).at(i, j);
  float* const d = p.d.matrix(batch).at(i, j);
  if (p.k_before > 0) {  // D is that sum, without alpha and beta C
    *d = activated(p.activation, sum);
  } else if (job.scaled_only) {
    *d = add_c(p, p.alpha * sum, c);
  } else {
    int of_alpha;
    const float alpha = frexpf(p.alpha, &of_alpha);
    *d = finished(p, unscaled(alpha * sum, of_alpha), c);
  }
}

}  // namespace sgemm::split
