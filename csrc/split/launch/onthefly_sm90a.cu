// Launches on-the-fly products, whose kernels read A, or both operands, as raw float32 and split them.
#include "../../problem/views.h"
#include "../onthefly/both.cuh"
#include "../onthefly/onthefly.cuh"
#include "launches.h"
#include "read_redone.cuh"

namespace sgemm::split {

template <int TILE_M, int TILE_N>
void launch_onthefly(const Job& unmapped, int64_t blocks, Stream stream) {
  using Shape = TileShape<TILE_M, TILE_N>;
  constexpr int kBytes = OnTheFlyRing<Shape>::kBytes + kStagingBytes;
  Job job = unmapped;
  const ConstMatrix lines = job.a.lines(job.k_all);
  job.a.mapped = can_be_mapped(lines, job.a.count);
  with_constant(!job.a.along_k, [&](auto a_along_m) {
    CUtensorMap map = {};
    if (job.a.mapped) map = RawPanel<a_along_m>::map(lines, job.a.count);
    with_constant(!job.b.along_k, [&](auto b_along_n) {
      launch_with_memory<split_onthefly<Shape, a_along_m, b_along_n>>(blocks, kProductThreads, kBytes, kBytes, 1,
                                                                      stream, job, map);
    });
  });
}
template void launch_onthefly<kTile, kTile / 2>(const Job&, int64_t, Stream);

template <int TILE_M, int TILE_N>
void launch_both(const Job& unmapped, int64_t blocks, Stream stream) {
  using Shape = TileShape<TILE_M, TILE_N>;
  using R = BothRing<Shape>;
  constexpr int kBytes = R::kBytes + R::kRawStages * R::kStageBytes + kStagingBytes;
  Job job = unmapped;
  RawMaps maps = {};
  const auto map = [&](Operand& x, int rows, CUtensorMap& to) {
    const ConstMatrix lines = x.lines(job.k_all);
    x.mapped = can_be_mapped(lines, x.count);
    if (x.mapped) to = hopper::tensor_map(lines, x.count, kStep, x.along_k ? rows : kLines, true);
  };
  map(job.a, TILE_M, maps.a);
  map(job.b, TILE_N, maps.b);
  launch_with_memory<split_both<Shape>>(blocks, kBothThreads, kBytes, kBytes, 1, stream, job, maps);
}
template void launch_both<kTile, kTile>(const Job&, int64_t, Stream);
template void launch_both<kTile, kTile / 2>(const Job&, int64_t, Stream);

Redone redone_in_onthefly() { return redone_here(); }

}  // namespace sgemm::split
