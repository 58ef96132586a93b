// Launches a large product: first copies operands that don't lie along m or n, then multiplies.
#include <algorithm>

#include "../gpu/launch_cluster.cuh"
#include "../gpu/pack.cuh"
#include "../epilogue/split_k_reduction.cuh"
#include "large.cuh"

namespace sgemm::ieee {
namespace {

ConstMatrix copied(const ConstMatrix& x, int64_t count, void* memory, const Context& context) {
  const Matrix copy = packed_copy(x, count, memory);
  cuda_backend::pack(x, ElementType::kFloat32, copy, count, context);
  return {copy.data, x.rows, x.cols, copy.row, 1, copy.batch};
}

template <class Shape, auto KERNEL>
void launch_piece(const Problem& problem, const LargePlan& plan, const Context& context) {
  const LargeLayout& at = plan.layout;
  char* const workspace = static_cast<char*>(context.workspace);
  LargeJob job = {};
  job.p = plan.swapped ? transposed(problem) : problem;
  Problem& p = job.p;
  OperandMaps maps = {{}, {}, matrices(p.a, p.batch), matrices(p.b, p.batch)};
  job.arrived = reinterpret_cast<uint32_t*>(workspace + at.arrived);
  if (plan.left)
    check(cudaMemsetAsync(job.arrived, 0, 4 * plan.left, static_cast<cudaStream_t>(context.stream)), "cudaMemset");
  if (plan.pack_a) p.a = transposed(copied(transposed(p.a), maps.count_a, workspace + at.copy_a, context));
  if (plan.pack_b) p.b = copied(p.b, maps.count_b, workspace + at.copy_b, context);
  job.slices = plan.slices;
  job.tiles_m = static_cast<int>(ceil_div(p.m, Shape::kRows));
  job.tiles_n = static_cast<int>(ceil_div(p.n, Shape::kCols));
  job.deal = {static_cast<int>(plan.whole + plan.left), static_cast<int>(ceil_div(p.k, Large::BK)),
              static_cast<int>(plan.whole), plan.sharing};
  const Problem whole = p;
  float* const partials = reinterpret_cast<float*>(workspace + at.partials);
  if (plan.slices > 1) p = product_of_slices(p, partials);
  job.rows = ends_in_groups<4>(p);
  job.columns = ends_in_groups<4>(transposed(p));
  job.parts = reinterpret_cast<float*>(workspace + at.parts);
  if (p.k) {
    maps.a = hopper::tensor_map(transposed(p.a), maps.count_a, Shape::kRows, Large::BK);
    maps.b = hopper::tensor_map(p.b, maps.count_b, Shape::kCols, Large::BK);
  }
  launch_with_memory<KERNEL>(plan.blocks, Large::kBlockThreads, Shape::kRingBytes, Shape::kRingBytes, plan.cluster,
                             context.stream, job, maps);
  if (plan.slices > 1) launch_sum(partials, plan.slices, whole, context);
}

}  // namespace

void Large::launch(const Problem& p, const Plan& planned, const Context& context) {
  const Pieces cut = large_pieces(p);
  const bool one_piece = cut.in_d && p.m <= cut.m && p.n <= cut.n;
  Context behind = context;
  behind.workspace = static_cast<char*>(context.workspace) + large_slices_bytes(p);
  for_each_piece(p, cut, context.workspace, context, [&](const Problem& piece) {
    const LargePlan plan = one_piece ? planned.own<LargePlan>() : large_plan(piece, *context.device);
    const auto launch = plan.cluster == 0   ? launch_piece<LargeShape<1>, large>
                        : plan.cluster == 1 ? launch_piece<LargeShape<2>, large_in_clusters<1>>
                        : plan.cluster == 2 ? launch_piece<LargeShape<2>, large_in_clusters<2>>
                        : plan.cluster == 3 ? launch_piece<LargeShape<2>, large_in_clusters<3>>
                                            : launch_piece<LargeShape<2>, large_in_clusters<4>>;
    launch(piece, plan, behind);
  });
}

}  // namespace sgemm::ieee
