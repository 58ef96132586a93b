// An activation as a separate kernel: D = f(C). D may be C. Bound by memory: 8 bytes per element.
#pragma once
#include "activation.h"
#include "../gpu/launch.h"

namespace sgemm::SGEMM_BACKEND {

constexpr int kActivateTile = 32, kActivateRows = 8;

__global__ void __launch_bounds__(kActivateTile* kActivateRows) activate_tiles(Problem p) {
  const Tile tile = block_tile(p.d, kActivateTile, kActivateTile);
  const ConstMatrix c = p.c.matrix(tile.batch);
  const Matrix d = p.d.matrix(tile.batch);
  const int64_t j = tile.col + threadIdx.x;
  for (int64_t i = tile.row + threadIdx.y; i < tile.row + kActivateTile; i += kActivateRows)
    if (d.contains(i, j)) *d.at(i, j) = activated(p.activation, *c.at(i, j));
}

inline void activate(const Problem& p, const Context& context) {
  launch_tiles(activate_tiles, kActivateTile, kActivateTile, dim3(kActivateTile, kActivateRows), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND
