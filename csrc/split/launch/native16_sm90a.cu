// Launches a product of bfloat16 operands.
#include "../../epilogue/mirror.cuh"
#include "../../gpu/launch_cluster.cuh"
#include "../../problem/views.h"
#include "../native16/native16.cuh"

namespace sgemm::split {
namespace {

// Returns the lines of an operand that is given as rows along k: these rows, or the columns if a tensor map can't
// describe the rows.
Lines16 lines_16(const Matrix16& rows, int64_t count) {
  const bool across = !can_be_mapped(rows, count);
  return {across ? transposed(rows) : rows, count, across};
}

// Returns a tensor map with boxes of `rows` rows x 64 of k. If the operand lies across, boxes are 64 x 64.
CUtensorMap panel_map(const Lines16& x, int rows) {
  return hopper::tensor_map(x.matrix, x.count, 64, x.across ? 64 : rows, true);
}

template <int BLOCKS>
void launch_tiles(const Problem& p, const Native16Plan& plan, const Context& context) {
  using Ring = Native16Ring<BLOCKS>;
  constexpr int kBytes = Ring::kBytes + kStagingBytes;
  char* const workspace = static_cast<char*>(context.workspace);
  const bool looks_ahead = p.beta != 0;  // D may be C
  const int flags = looks_ahead ? kSearchFlags : plan.blocks * kSearchers / 32;
  SubnormalsJob ends = {p, {}, {}, reinterpret_cast<uint32_t*>(workspace + plan.layout.total), flags};
  OperandMaps maps = {{}, {}, matrices(p.a, p.batch), matrices(p.b, p.batch)};
  if (p.k > 0) {
    ends.a = lines_16(in_16_bits(p.a), maps.count_a);
    ends.b = lines_16(in_16_bits(transposed(p.b)), maps.count_b);
    maps.a = panel_map(ends.a, Ring::kRows);
    maps.b = panel_map(ends.b, Ring::kCols);
  }
  const Native16Job job = {p,
                           plan.deal,
                           static_cast<int>(ceil_div(p.m, Ring::kRows)),
                           static_cast<int>(ceil_div(p.n, Ring::kCols)),
                           plan.long_windows,
                           store_mode(p),
                           reinterpret_cast<float*>(workspace + plan.layout.parts),
                           reinterpret_cast<uint32_t*>(workspace + plan.layout.arrived),
                           ends.found,
                           looks_ahead ? flags : 0};
  if (plan.deal.sharing)
    check(
        cudaMemsetAsync(job.arrived, 0, sizeof(uint32_t) * plan.deal.left(), static_cast<cudaStream_t>(context.stream)),
        "memset");
  if (looks_ahead) launch(find_subnormals, kSearchBlocks, kConsumers, 0, 1, true, context.stream, ends);
  with_constant(ends.a.across, [&](auto a_along_m) {
    with_constant(ends.b.across, [&](auto b_along_n) {
      launch_with_memory<native16<BLOCKS, a_along_m, b_along_n>>(plan.blocks, kNative16Threads, kBytes, kBytes,
                                                                 plan.cluster, context.stream, job, maps);
    });
  });
  const int64_t tiles = ceil_div(p.m, kTile) * ceil_div(p.n, kTile) * p.batch;
  launch(redo_subnormals, std::min<int64_t>(tiles, context.device->sms), kConsumers, 0, 1, true, context.stream, ends);
}

}  // namespace

void Native16::launch(const Problem& asked, const Plan& planned, const Context& context) {
  const Problem p = solved(asked);
  const auto plan = planned.own<Native16Plan>();
  if (planned.tile == 0)
    launch_tiles<2>(p, plan, context);
  else
    launch_tiles<1>(p, plan, context);
  if (is_gram(p)) launch_mirror(p, context);
}

}  // namespace sgemm::split
