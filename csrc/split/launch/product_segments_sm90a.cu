// Instantiates the product of float16 planes that adds up segments of k.
#include "../gemm/segments.cuh"
#include "../../gpu/launch_cluster.cuh"
#include "launches.h"
#include "read_redone.cuh"

namespace sgemm::split {

template <int TILE_M, int TILE_N>
void launch_segments(const Job& job, int64_t blocks, Stream stream) {
  using Shape = TileShape<TILE_M, TILE_N>;
  constexpr int kBytes = SegmentRing<Shape>::kBytes + kTotalBytes<Shape>;
  with_constant(!job.a.along_k, [&](auto a_along_m) {
    with_constant(!job.b.along_k, [&](auto b_along_n) {
      launch_with_memory<split_product_in_segments<Shape, a_along_m, b_along_n>>(blocks, kProductThreads, kBytes,
                                                                                 kBytes, 1, stream, job);
    });
  });
}
template void launch_segments<kTile, kTile>(const Job&, int64_t, Stream);
template void launch_segments<kTile, kTile / 2>(const Job&, int64_t, Stream);

Redone redone_in_segments() { return redone_here(); }

}  // namespace sgemm::split
