// The launch of a product of few tiles.
#include "small.cuh"

#include "../gpu/launch_cluster.cuh"
#include "../epilogue/split_k_reduction.cuh"
#include "../problem/views.h"

namespace sgemm::ieee {
namespace {

// From so many blocks on that read the same elements; 256^3, where 16 do, would take a sixth longer.
constexpr int64_t kManyBlocks = 32;

// Whether an operand of so many rows along m or n, that so many blocks read, is better read through the L1 cache. Not
// where each copies few rows along k, or lines of 64 bytes: these are few requests as it is. One that is read element
// by element goes there anyway.
bool is_shared(const SmallRead& read, int64_t rows, int64_t blocks) {
  return read.vector && blocks >= kManyBlocks && (read.along_k ? rows > 2 : rows < 16);
}

template <int TILE, bool A_ALONG_K, bool B_ALONG_K>
void launch_tiles(const SmallJob& job, int cluster, Stream stream) {
  static std::atomic<uint64_t> prepared[2] = {};
  const bool shared = job.a_shared || job.b_shared;
  const auto kernel = shared ? small<TILE, A_ALONG_K, B_ALONG_K, true> : small<TILE, A_ALONG_K, B_ALONG_K, false>;
  constexpr int kBytes = SmallRing<TILE, A_ALONG_K, B_ALONG_K>::kBytes;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes, prepared[shared]);
  const int64_t tiles = int64_t{job.tiles_m} * job.tiles_n * job.p.batch;
  launch(kernel, tiles * cluster, Small::kThreads, kBytes, cluster, true, stream, job);
}

template <int TILE>
void launch_tile(const Problem& p, const SmallPlan& plan, const Context& context) {
  constexpr SmallTile kTile = kSmallTiles[TILE];
  const SmallRead a = small_read(p.a), b = small_read(transposed(p.b));
  const int64_t tiles_m = ceil_div(p.m, kTile.rows()), tiles_n = ceil_div(p.n, kTile.cols());
  SmallJob job = {p,
                  ceil_div(ceil_div(p.k, plan.cluster * plan.slices), 4) * 4,
                  plan.slices > 1,
                  static_cast<uint32_t>(tiles_m),
                  static_cast<uint32_t>(tiles_n),
                  a.vector,
                  b.vector,
                  is_shared(a, p.m, tiles_n * p.batch / matrices(p.a, p.batch)),
                  is_shared(b, p.n, tiles_m * p.batch / matrices(p.b, p.batch))};
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
  if (job.sliced) launch_sum(partials, plan.slices, false, p, context);
}

}  // namespace

void Small::launch(const Problem& problem, const Plan& planned, const Context& context) {
  const auto plan = planned.own<SmallPlan>();
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
