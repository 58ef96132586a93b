// The launch of a product with many rows, of few columns and a short k.
#include "tall.cuh"

#include "../gpu/launch_cluster.cuh"
#include "../epilogue/split_k_reduction.cuh"
#include "../problem/views.h"

namespace sgemm::ieee {
namespace {

template <int TILE, bool A_ALONG_K>
void launch_tiles(const TallJob& job, Stream stream) {
  static std::atomic<uint64_t> prepared[2] = {};
  const bool added = job.p.k_before > 0;
  const auto kernel = added ? tall<TILE, A_ALONG_K, true> : tall<TILE, A_ALONG_K, false>;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), tall_bytes(TILE, A_ALONG_K, Tall::kMostK), prepared[added]);
  const int64_t blocks = int64_t{job.groups} * job.tiles_n * job.p.batch;
  launch(kernel, blocks, Tall::kThreads, tall_bytes(TILE, A_ALONG_K, job.p.k), 0, true, stream, job);
}

template <int TILE>
void launch_tile(const Problem& p, int64_t groups, Stream stream) {
  constexpr TallTile kTile = kTallTiles[TILE];
  const bool along_k = runs_along_k(p.a.col, p.a.row);
  TallJob job = {p,
                 static_cast<int>(ceil_div(p.k, Tall::BK) * Tall::BK),
                 static_cast<uint32_t>(ceil_div(p.m, kTile.rows())),
                 static_cast<uint32_t>(ceil_div(p.n, kTile.cols())),
                 static_cast<uint32_t>(groups),
                 has_aligned_rows<4>(along_k ? p.a : transposed(p.a)),
                 has_aligned_rows<4>(p.b),
                 tall_stores(TILE, p)};
  along_k ? launch_tiles<TILE, true>(job, stream) : launch_tiles<TILE, false>(job, stream);
}

void launch_piece(const Problem& problem, const TallPlan& plan, const Context& context) {
  const Problem p = plan.swapped ? transposed(problem) : problem;
  switch (plan.tile) {
    case 0:
      return launch_tile<0>(p, plan.groups, context.stream);
    case 1:
      return launch_tile<1>(p, plan.groups, context.stream);
    case 2:
      return launch_tile<2>(p, plan.groups, context.stream);
    default:
      return launch_tile<3>(p, plan.groups, context.stream);
  }
}

}  // namespace

void Tall::launch(const Problem& p, const Plan& plan, const Context& context) {
  const int64_t most = tall_piece(p.k);
  const auto run = [&](const Problem& slice) {
    for_each_piece(slice, {slice.m, slice.n, most, slice.batch},
                   [&](const Problem& piece) { launch_piece(piece, plan.own<TallPlan>(), context); });
  };
  if (p.k <= most || adds_up_in_d(p)) return run(p);
  for_each_slice(p, tall_part(p), p.k, false, static_cast<float*>(context.workspace), context, run);
}

}  // namespace sgemm::ieee
