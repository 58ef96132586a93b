// The activation of a product whose kernel leaves it out, in place. Bound by memory: 8 bytes per element.
#pragma once
#include "activation.h"
#include "../gpu/launch.h"

namespace sgemm::SGEMM_BACKEND {

constexpr int kActivateTile = 32, kActivateRows = 8;

__global__ void __launch_bounds__(kActivateTile* kActivateRows) activate_tiles(Problem p) {
  const Tile tile = block_tile(p.d, kActivateTile, kActivateTile);
  const Matrix d = p.d.matrix(tile.batch);
  const int64_t j = tile.col + threadIdx.x;
  for (int64_t i = tile.row + threadIdx.y; i < tile.row + kActivateTile; i += kActivateRows)
    if (d.contains(i, j)) *d.at(i, j) = activated(p.activation, *d.at(i, j));
}

inline void activate(const Problem& p, const Context& context) {
  launch_tiles(activate_tiles, kActivateTile, kActivateTile, dim3(kActivateTile, kActivateRows), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND
