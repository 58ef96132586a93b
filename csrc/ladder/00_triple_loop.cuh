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
  static void launch(const Problem& p, const Context&) {
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const ConstMatrix a = p.a.matrix(batch), b = p.b.matrix(batch);
      for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j) {
          float acc = 0;
          for (int64_t q = 0; q < p.k; ++q) acc += *a.at(i, q) * *b.at(q, j);
          store(p, {batch, 0, 0}, i, j, acc);
        }
    }
  }
#endif
};

}  // namespace sgemm::SGEMM_BACKEND::triple_loop
