// Launches a split product with many rows, few columns and a short k.
#include "../../epilogue/mirror.cuh"
#include "../../epilogue/split_k_reduction.cuh"
#include "../../gpu/launch_cluster.cuh"
#include "../format/row_scale.cuh"
#include "../rows/tall.cuh"
#include "../rows/tall.h"
#include "launches.h"
#include "read_redone.cuh"

namespace sgemm::split {
namespace {

template <int TILE>
void launch_tile(const Problem& p, const TallPiece& plan, const Context& context) {
  const TallJob job = {p,
                       static_cast<uint32_t>(ceil_div(p.m, TallTile::kRows)),
                       static_cast<uint32_t>(ceil_div(p.n, plan.cols)),
                       static_cast<uint32_t>(plan.groups),
                       plan.cols,
                       is_plain_alpha(p.alpha),
                       p.beta != 0 || p.activation != Activation::kNone,
                       plan.stores,
                       static_cast<TallEntry*>(context.workspace)};
  const int64_t blocks = int64_t{job.groups} * job.tiles_n * p.batch;
  const int bytes =
      tall_panel_bytes(TILE, plan.cols) + (is_staged(plan.stores) ? plan.warps * tall_staged_bytes(plan.cols) : 0);
  with_constant<3>(static_cast<int>(plan.reads), [&](auto reads) {
    launch_with_memory<split_tall<TILE, static_cast<TallReads>(int{reads})>>(blocks, 32 * plan.warps, bytes,
                                                                             kTallMostBytes, 0, context.stream, job);
  });
}

}  // namespace

void TallProduct::launch(const Problem& p, const Plan& planned, const Context& context) {
  const auto plan = planned.own<TallPlan>();
  const Pieces& cut = plan.pieces;
  const int64_t depth = std::min(p.k, cut.k);
  char* const sums = static_cast<char*>(context.workspace) + tall_list_bytes(p);
  for_each_piece(p, cut, sums, context, [&](const Problem& piece) {
    const bool whole = piece.m == cut.m && piece.n == cut.n;
    const TallPiece way = !whole ? tall_piece(piece, *context.device) : piece.k == depth ? plan.piece : plan.last;
    const Problem q = way.swapped ? transposed(piece) : piece;
    with_constant<kTallCount>(way.tile, [&](auto tile) { launch_tile<tile>(q, way, context); });
  });
  if (is_gram(p)) launch_mirror(p, context);
}

Redone redone_in_rows() { return redone_here(); }

}  // namespace sgemm::split
