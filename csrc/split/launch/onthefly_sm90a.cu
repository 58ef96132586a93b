// Launches the on-the-fly product, whose kernel reads A as raw float32 and splits it.
#include "../../problem/views.h"
#include "../onthefly/onthefly.cuh"
#include "launches.h"
#include "read_redone.cuh"

namespace sgemm::split {

template <int TILE_M, int TILE_N>
void launch_onthefly(const Job& unmapped, bool splits_b, int64_t blocks, Stream stream) {
  using Shape = TileShape<TILE_M, TILE_N>;
  constexpr int kBytes = OnTheFlyRing<Shape>::kBytes + kStagingBytes;
  Job job = unmapped;
  const ConstMatrix lines_a = job.a.lines(job.k_all), lines_b = job.b.lines(job.k_all);
  job.a.mapped = can_be_mapped(lines_a, job.a.count);
  job.b.mapped = splits_b && can_be_mapped(lines_b, job.b.count);
  with_constant(!job.a.along_k, [&](auto a_along_m) {
    with_constant(!job.b.along_k, [&](auto b_along_n) {
      RawMaps maps = {};
      if (job.a.mapped) maps.a = RawPanel<a_along_m, kTile>::map(lines_a, job.a.count);
      if (job.b.mapped) maps.b = RawPanel<b_along_n, Shape::kCols>::map(lines_b, job.b.count);
      with_constant(splits_b, [&](auto splits) {
        launch_with_memory<split_onthefly<Shape, a_along_m, b_along_n, splits>>(blocks, kProductThreads, kBytes, kBytes, 1,
                                                                                stream, job, maps);
      });
    });
  });
}
template void launch_onthefly<kTile, kTile / 2>(const Job&, bool, int64_t, Stream);

Redone redone_in_onthefly() { return redone_here(); }

}  // namespace sgemm::split
