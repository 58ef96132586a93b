// Launches the on-the-fly product, whose kernel reads A as raw float32 and splits it.
#include "launch_persistent.cuh"
#include "launches.h"
#include "../onthefly/onthefly.cuh"

namespace sgemm::split {
namespace {

template <class Shape, bool A_ALONG_M, bool B_ALONG_N, bool SPLITS_B>
void launch_onthefly(Job job, int sms, int cluster, Stream stream) {
  RawMaps maps = {};
  const ConstMatrix lines_a = job.a.lines(job.k_all), lines_b = job.b.lines(job.k_all);
  job.a.mapped = can_be_mapped(lines_a, job.a.count);
  if (job.a.mapped) maps.a = RawPanel<A_ALONG_M, kTile>::map(lines_a, job.a.count);
  job.b.mapped = SPLITS_B && can_be_mapped(lines_b, job.b.count);
  if (job.b.mapped) maps.b = RawPanel<B_ALONG_N, Shape::kCols>::map(lines_b, job.b.count);
  launch_persistent<split_onthefly<Shape, A_ALONG_M, B_ALONG_N, SPLITS_B>>(kProductThreads, OnTheFlyRing<Shape>::kBytes,
                                                                           sms, cluster, stream, job, maps);
}

}  // namespace

template <int TILE_M, int TILE_N>
void launch_onthefly(const Job& job, bool splits_b, int sms, int cluster, Stream stream) {
  using Shape = TileShape<TILE_M, TILE_N>;
  with_constant(!job.a.along_k, [&](auto a_along_m) {
    with_constant(!job.b.along_k, [&](auto b_along_n) {
      with_constant(splits_b, [&](auto splits) {
        launch_onthefly<Shape, a_along_m, b_along_n, splits>(job, sms, cluster, stream);
      });
    });
  });
}
template void launch_onthefly<kTile, kTile / 2>(const Job&, bool, int, int, Stream);

Redone redone_in_onthefly() { return redone_here(); }

}  // namespace sgemm::split
