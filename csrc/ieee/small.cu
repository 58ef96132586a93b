// The launch of a product of few tiles.
#include "small.cuh"

#include "../common/launch_cluster.cuh"
#include "../common/sum.cuh"
#include "../common/views.h"

namespace sgemm::ieee {
namespace {

template <int TILE, bool A_ALONG_K, bool B_ALONG_K>
void launch_tiles(const SmallJob& job, int cluster, Stream stream) {
  static std::atomic<uint64_t> prepared{0};
  const auto kernel = small<TILE, A_ALONG_K, B_ALONG_K>;
  constexpr int kBytes = SmallRing<TILE, A_ALONG_K, B_ALONG_K>::kBytes;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes, prepared);
  const int64_t tiles = int64_t{job.tiles_m} * job.tiles_n * job.p.batch;
  launch(kernel, tiles * cluster, Small::kThreads, kBytes, cluster, true, stream, job);
}

template <int TILE>
void launch_tile(const Problem& p, const SmallPlan& plan, const Context& context) {
  constexpr SmallTile kTile = kSmallTiles[TILE];
  const SmallRead a = small_read(p.a), b = small_read(transposed(p.b));
  SmallJob job = {p,
                  ceil_div(ceil_div(p.k, plan.cluster * plan.slices), 4) * 4,
                  plan.slices > 1,
                  static_cast<uint32_t>(ceil_div(p.m, kTile.rows())),
                  static_cast<uint32_t>(ceil_div(p.n, kTile.cols())),
                  a.vector,
                  b.vector};
  float* const partials = static_cast<float*>(context.workspace);
  if (job.sliced) {
    job.p = product_of_slices(p, partials);
    job.p.batch = plan.slices;
  }
  if (a.along_k)
    b.along_k ? launch_tiles<TILE, true, true>(job, plan.cluster, context.stream)
              : launch_tiles<TILE, true, false>(job, plan.cluster, context.stream);
  else
    b.along_k ? launch_tiles<TILE, false, true>(job, plan.cluster, context.stream)
              : launch_tiles<TILE, false, false>(job, plan.cluster, context.stream);
  if (job.sliced) launch_sum(partials, plan.slices, p, context);
}

}  // namespace

void Small::launch(const Problem& problem, const Context& context) {
  const SmallPlan plan = small_plan(problem, *context.device);
  const Problem p = plan.swapped ? transposed(problem) : problem;
  switch (plan.tile) {
    case 0:
      return launch_tile<0>(p, plan, context);
    case 1:
      return launch_tile<1>(p, plan, context);
    default:
      return launch_tile<2>(p, plan, context);
  }
}

}  // namespace sgemm::ieee
