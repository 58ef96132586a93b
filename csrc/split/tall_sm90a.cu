// The launch of a split product with many rows, of few columns and a short k.
#include "../gpu/launch_cluster.cuh"
#include "../epilogue/split_k_reduction.cuh"
#include "../problem/views.h"
#include "tall.cuh"

namespace sgemm::split {
namespace {

template <int TILE, TallReads READS>
void launch_rows(const TallJob& job, int warps, Stream stream) {
  static std::atomic<uint64_t> prepared{0};
  const auto kernel = split_tall<TILE, READS>;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), kTallMostBytes, prepared);
  const int64_t blocks = int64_t{job.groups} * job.tiles_n * job.p.batch;
  const int staged = is_staged(job.stores) ? warps * tall_staged_bytes(job.cols) : 0;
  launch(kernel, blocks, 32 * warps, tall_panel_bytes(TILE, job.cols) + staged, 0, true, stream, job);
}

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
  switch (plan.reads) {
    case TallReads::kQuads:
      return launch_rows<TILE, TallReads::kQuads>(job, plan.warps, context.stream);
    case TallReads::kPairs:
      return launch_rows<TILE, TallReads::kPairs>(job, plan.warps, context.stream);
    default:
      return launch_rows<TILE, TallReads::kSingles>(job, plan.warps, context.stream);
  }
}

void launch_piece(const Problem& problem, const TallPiece& plan, const Context& context) {
  const Problem p = plan.swapped ? transposed(problem) : problem;
  switch (plan.tile) {
    case 0:
      return launch_tile<0>(p, plan, context);
    case 1:
      return launch_tile<1>(p, plan, context);
    case 2:
      return launch_tile<2>(p, plan, context);
    case 3:
      return launch_tile<3>(p, plan, context);
    case 4:
      return launch_tile<4>(p, plan, context);
    default:
      return launch_tile<5>(p, plan, context);
  }
}

}  // namespace

void TallProduct::launch(const Problem& p, const Plan& planned, const Context& context) {
  const auto plan = planned.own<TallPlan>();
  const TallSlices& cut = plan.slices;
  const auto run = [&](const Problem& slice) {
    const bool whole = cut.in_d || (slice.m == cut.part.m && slice.n == cut.part.n);
    for_each_piece(slice, {slice.m, slice.n, cut.piece, slice.batch}, [&](const Problem& piece) {
      const TallPiece& planned = piece.k == std::min(p.k, cut.piece) ? plan.piece : plan.last;
      launch_piece(piece, whole ? planned : tall_piece(piece, *context.device), context);
    });
  };
  if (cut.in_d) return run(p);
  char* const sums = static_cast<char*>(context.workspace) + tall_list_bytes(p);
  for_each_slice(p, cut.part, cut.slice, true, reinterpret_cast<float*>(sums), context, run);
}

Redone redone_in_rows() { return redone_here(); }

}  // namespace sgemm::split
