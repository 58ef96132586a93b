// Launches a product with many rows, few columns and a short k.
#include "tall.cuh"

#include "../gpu/launch_cluster.cuh"
#include "../epilogue/split_k_reduction.cuh"

namespace sgemm::ieee {
namespace {

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
  const int64_t blocks = int64_t{job.groups} * job.tiles_n * p.batch;
  with_constant(along_k, [&](auto a_along_k) {
    with_constant(p.k_before > 0, [&](auto added) {
      launch_with_memory<tall<TILE, a_along_k, added>>(blocks, Tall::kThreads, tall_bytes(TILE, a_along_k, p.k),
                                                       tall_bytes(TILE, a_along_k, Tall::kMostK), 0, stream, job);
    });
  });
}

}  // namespace

void Tall::launch(const Problem& p, const Plan& planned, const Context& context) {
  const auto plan = planned.own<TallPlan>();
  for_each_piece(p, plan.pieces, context.workspace, context, [&](const Problem& piece) {
    const Problem q = plan.piece.swapped ? transposed(piece) : piece;
    with_constant<kTallCount>(plan.piece.tile,
                              [&](auto tile) { launch_tile<tile>(q, plan.piece.groups, context.stream); });
  });
}

}  // namespace sgemm::ieee
