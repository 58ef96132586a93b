// Each thread computes one element of C; neighbouring threads have neighbouring columns.
//
// Idea:   threadIdx.x runs along a row of C. A warp then reads 32 neighbouring elements of B (4 sectors of 32 bytes)
//         and one element of A (1 sector, broadcast), and writes 4 sectors of C.
// Bound:  loads. Every multiply-add still waits for two elements from the caches.
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::coalesced {

template <int BLOCK>
struct Rung {
  static constexpr const char* kIdea = "warps walk along rows: coalesced loads and stores";
  static constexpr const char* kSource = "ladder/02_coalesced.cuh";
  static constexpr int BM = BLOCK, BN = BLOCK, BK = 1, TM = 1, TN = 1;
  static constexpr int kThreads = BLOCK * BLOCK;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static_assert(kThreads <= 1024, "a block has at most 1024 threads");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) kernel(Problem p) {
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const int64_t i = tile.row + threadIdx.y, j = tile.col + threadIdx.x;
  if (!p.d.contains(i, j)) return;

  const float* a = p.a.matrix(tile.batch).at(i, 0);  // (k)
  const float* b = p.b.matrix(tile.batch).at(0, j);  // (k)
  float acc = 0;
  for (int64_t q = 0; q < p.k; ++q) acc += a[q * p.a.col] * b[q * p.b.row];
  store(p, tile, i, j, acc);
}

template <int BLOCK>
void Rung<BLOCK>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(BLOCK, BLOCK), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::coalesced
