// A shared-memory tile with its barriers taken out one at a time, to see that the emulator exposes each.
#pragma once
#include <vector>

#include "epilogue/store.h"

namespace sgemm::emulated_backend {

enum class Fault { kNone, kNoBarrierAfterStores, kNoBarrierAfterLoads, kBarrierForSomeThreads };

template <Fault FAULT>
__global__ void faulty_tile(Problem p) {
  constexpr int BLOCK = 16;
  __shared__ float as[BLOCK][BLOCK], bs[BLOCK][BLOCK];
  const Tile tile = block_tile(p.d, BLOCK, BLOCK);
  const int x = threadIdx.x, y = threadIdx.y;
  float acc = 0;
  for (int64_t k0 = 0; k0 < p.k; k0 += BLOCK) {
    as[y][x] = p.a.load(tile.row + y, k0 + x);
    bs[y][x] = p.b.load(k0 + y, tile.col + x);
    if (FAULT == Fault::kBarrierForSomeThreads && x == 3) return;
    if (FAULT != Fault::kNoBarrierAfterStores) __syncthreads();
    for (int q = 0; q < BLOCK; ++q) acc += as[y][q] * bs[q][x];
    if (FAULT != Fault::kNoBarrierAfterLoads) __syncthreads();
  }
  store(p, tile, tile.row + y, tile.col + x, acc);
}

template <Fault FAULT>
void launch_faulty(const Problem& p, const Plan&, const Context& context) {
  launch_tiles(faulty_tile<FAULT>, 16, 16, dim3(16, 16), p, context);
}

inline Kernel faulty(const char* name, void (*launch)(const Problem&, const Plan&, const Context&)) {
  return {name, "broken", "", "", 16, 16, 16, 1, 1, 256, Reads::kAnyStrides, 0, kAnyArch, 1, launch};
}

inline std::vector<Kernel> broken_kernels() {
  return {faulty("sound", launch_faulty<Fault::kNone>),
          faulty("no_barrier_after_stores", launch_faulty<Fault::kNoBarrierAfterStores>),
          faulty("no_barrier_after_loads", launch_faulty<Fault::kNoBarrierAfterLoads>),
          faulty("barrier_for_some_threads", launch_faulty<Fault::kBarrierForSomeThreads>)};
}

}  // namespace sgemm::emulated_backend
