// The definition of the product as a loop on the CPU: the reference that the ladder starts from.
//
// Reads:  any strides.
#pragma once
#include "../epilogue/store.h"

namespace sgemm::SGEMM_BACKEND::triple_loop {

struct Rung {
  static constexpr const char* kIdea = "three loops on the CPU";
  static constexpr const char* kSource = "ladder/00_triple_loop.cuh";
  static constexpr int BM = 1, BN = 1, BK = 1, TM = 1, TN = 1;
  static constexpr int kThreads = 1;
  static constexpr Reads kReads = Reads::kAnyStrides;
#if defined(__CUDACC__)
  static constexpr void (*launch)(const Problem&, const Context&) = nullptr;
#else
  static void launch(const Problem& p, const Context& context);
#endif
};

#if !defined(__CUDACC__)
inline void kernel(const Problem& p, const Tile& tile) {
  const int64_t i = tile.row, j = tile.col;

  const float* a = p.a.matrix(tile.batch).at(i, 0);  // (k)
  const float* b = p.b.matrix(tile.batch).at(0, j);  // (k)
  float acc = 0;
  for (int64_t q = 0; q < p.k; ++q) acc += a[q * p.a.col] * b[q * p.b.row];
  store(p, tile, i, j, acc);
}

inline void Rung::launch(const Problem& p, const Context&) {
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) kernel(p, {batch, i, j});
}
#endif

}  // namespace sgemm::SGEMM_BACKEND::triple_loop
