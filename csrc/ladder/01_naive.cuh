// Each thread computes one element of C; neighbouring threads have neighbouring rows.
//
// Idea:   the definition of the product, nothing else.
// Bound:  memory transactions. threadIdx.x runs along a column of C. So the 32 threads of a warp read 32 rows of A and
//         write 32 rows of C: 32 sectors instead of 4.
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::naive {

template <int BLOCK>
struct Rung {
  static constexpr const char* kIdea = "one thread, one element; warps walk down columns";
  static constexpr const char* kSource = "ladder/01_naive.cuh";
  static constexpr int BM = BLOCK, BN = BLOCK, BK = 1, TM = 1, TN = 1;
  static constexpr int kThreads = BLOCK * BLOCK;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static_assert(kThreads <= 1024, "a block has at most 1024 threads");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) kernel(Problem p) {
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const int64_t i = tile.row + threadIdx.x, j = tile.col + threadIdx.y;
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

}  // namespace sgemm::SGEMM_BACKEND::naive
