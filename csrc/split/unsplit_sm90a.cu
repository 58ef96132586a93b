// The launch of a product of 16-bit operands.
#include "../epilogue/mirror.cuh"
#include "../gpu/launch_cluster.cuh"
#include "unsplit.cuh"

namespace sgemm::split {
namespace {

// Rows of `rows` and 64 of k at a time, or across: 64 of both.
CUtensorMap panel_map(const Matrix16& x, int64_t count, bool across, int rows) {
  return hopper::tensor_map(across ? transposed(x) : x, count, 64, across ? 64 : rows, true);
}

template <class T, int BLOCKS>
void launch_tiles(const Problem& p, const UnsplitPlan& plan, const Context& context) {
  using Ring = UnsplitRing<BLOCKS>;
  constexpr int kBytes = Ring::kBytes + kStagingBytes;
  const StreamKLayout at = stream_k_layout(plan.deal, Ring::kRows * Ring::kCols);
  char* const workspace = static_cast<char*>(context.workspace);
  const int64_t count_a = matrices(p.a, p.batch), count_b = matrices(p.b, p.batch);
  const UnsplitJob job = {p,
                          count_a,
                          count_b,
                          plan.deal,
                          static_cast<int>(ceil_div(p.m, Ring::kRows)),
                          static_cast<int>(ceil_div(p.n, Ring::kCols)),
                          plan.long_windows,
                          ends_in_groups<2>(p),
                          ends_in_groups<4>(p),
                          reinterpret_cast<float*>(workspace + at.parts),
                          reinterpret_cast<uint32_t*>(workspace + at.arrived)};
  if (plan.deal.sharing)
    check(
        cudaMemsetAsync(job.arrived, 0, sizeof(uint32_t) * plan.deal.left(), static_cast<cudaStream_t>(context.stream)),
        "memset");
  const Matrix16 a = in_16_bits(p.a), b = in_16_bits(transposed(p.b));
  const bool across_a = p.k > 0 && !can_be_mapped(a, count_a), across_b = p.k > 0 && !can_be_mapped(b, count_b);
  UnsplitMaps maps = {};
  if (p.k > 0) maps = {panel_map(a, count_a, across_a, Ring::kRows), panel_map(b, count_b, across_b, Ring::kCols)};
  with_constant(across_a, [&](auto a_along_m) {
    with_constant(across_b, [&](auto b_along_n) {
      launch_with_memory<unsplit<T, BLOCKS, a_along_m, b_along_n>>(plan.blocks, kUnsplitThreads, kBytes, kBytes,
                                                                   plan.cluster, context.stream, job, maps);
    });
  });
}

template <int BLOCKS>
void launch_elements(const Problem& p, const UnsplitPlan& plan, const Context& context) {
  if (p.elements_a == ElementType::kBFloat16)
    launch_tiles<BFloat16, BLOCKS>(p, plan, context);
  else
    launch_tiles<Float16, BLOCKS>(p, plan, context);
}

}  // namespace

void Unsplit::launch(const Problem& asked, const Plan& planned, const Context& context) {
  const Problem p = solved(asked);
  const auto plan = planned.own<UnsplitPlan>();
  if (planned.tile == 0)
    launch_elements<2>(p, plan, context);
  else
    launch_elements<1>(p, plan, context);
  if (is_gram(p)) launch_mirror(p, context);
}

}  // namespace sgemm::split
