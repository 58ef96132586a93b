// Store for kernels whose blocks compute one tile of D each.
#pragma once
#include "../gpu/launch.h"
#include "epilogue.cuh"

namespace sgemm::SGEMM_BACKEND {

// Stores D(i, j) = alpha * acc + beta * C(i, j) if the element is inside the matrix.
__device__ inline void store(const Problem& p, const Tile& tile, int64_t i, int64_t j, float acc) {
  if (!p.d.contains(i, j)) return;
  const float* const c = p.beta == 0 ? nullptr : p.c.matrix(tile.batch).at(i, j);
  *p.d.matrix(tile.batch).at(i, j) = add_c(p, p.alpha * acc, c);
}

}  // namespace sgemm::SGEMM_BACKEND
