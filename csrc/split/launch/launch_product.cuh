// Launches the product kernel. Each format has a separate file.
#pragma once
#include "../gemm/product.cuh"
#include "launches.h"
#include "read_redone.cuh"

namespace sgemm::split {

template <class F, int TILE_M, int TILE_N>
void launch_product(const Job& job, int64_t blocks, int cluster, Stream stream) {
  using Shape = TileShape<TILE_M, TILE_N>;
  constexpr int kBytes = ProductRing<F, Shape>::kBytes + kStagingBytes;
  with_constant(!job.a.along_k, [&](auto a_along_m) {
    with_constant(!job.b.along_k, [&](auto b_along_n) {
      launch_with_memory<split_product<F, Shape, a_along_m, b_along_n>>(blocks, kProductThreads, kBytes, kBytes,
                                                                        cluster, stream, job);
    });
  });
}

template <class F>
Redone redone_in_products() {
  return redone_here();
}

}  // namespace sgemm::split
