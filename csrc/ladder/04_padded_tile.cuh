// A tile stored transposed, as in kernels ported from column-major code, and the gain of a padding column.
//
// Idea:   in bs[n][k] the 32 threads of a warp read addresses BLOCK floats apart, which all lie in one of the 32 banks
//         and are served one by one. With PAD = 1 each row begins one bank further on, and the 32 reads take one cycle
//         again.
// Bound:  PAD = 0: bank conflicts, 32 per load. PAD = 1: shared-memory loads, as before.
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::padded_tile {

template <int BLOCK, int PAD>
struct Rung {
  static constexpr const char* kIdea = "transposed tiles: bank conflicts, and the padding that removes them";
  static constexpr const char* kSource = "ladder/04_padded_tile.cuh";
  static constexpr int BM = BLOCK, BN = BLOCK, BK = BLOCK, TM = 1, TN = 1, kPad = PAD;
  static constexpr int kThreads = BLOCK * BLOCK;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static_assert(kThreads <= 1024, "a block has at most 1024 threads");
  static void launch(const Problem& p, const Context& context);
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) kernel(Problem p) {
  __shared__ float as[T::BK][T::BM + T::kPad];  // (BK,BM)
  __shared__ float bs[T::BN][T::BK + T::kPad];  // (BN,BK)
  const Tile tile = block_tile(p.d, T::BM, T::BN);
  const ConstMatrix a = p.a.matrix(tile.batch), b = p.b.matrix(tile.batch);
  const int x = threadIdx.x, y = threadIdx.y, block = blockDim.x;
  const int64_t i = tile.row + y, j = tile.col + x;

  float acc = 0;
  for (int64_t k0 = 0; k0 < p.k; k0 += T::BK) {
    as[x][y] = a.load(i, k0 + x);
    bs[x][y] = b.load(k0 + y, j);
    __syncthreads();
    for (int q = 0; q < block; ++q) acc += as[q][y] * bs[x][q];
    __syncthreads();
  }
  store(p, tile, i, j, acc);
}

template <int BLOCK, int PAD>
void Rung<BLOCK, PAD>::launch(const Problem& p, const Context& context) {
  launch_tiles(kernel<Rung>, BM, BN, dim3(BLOCK, BLOCK), p, context);
}

}  // namespace sgemm::SGEMM_BACKEND::padded_tile
