// The launch of a product with few rows or columns.
#include "skinny.cuh"

#include "../gpu/launch_spread.h"
#include "../epilogue/split_k_reduction.cuh"

namespace sgemm::ieee {
namespace {

template <int WIDTH, class T>
void launch_width(const SkinnyJob& job, const SkinnyPlan& plan, const Context& context) {
  const int64_t blocks = int64_t{job.tiles_m} * job.tiles_n * job.p.batch * job.slices * plan.cluster;
  if (plan.along_k)
    return cuda_backend::launch_spread<skinny_along_k<WIDTH, T>>(blocks, kThreads, 0, plan.cluster, context, job);
  const int bytes = chain_bytes(WIDTH, skinny_part(plan));
  cuda_backend::launch_spread<skinny_along_m<WIDTH, T>>(blocks, kThreads, bytes, plan.cluster, context, job);
}

}  // namespace

void Skinny::launch(const Problem& problem, const Plan& planned, const Context& context) {
  const auto plan = planned.own<SkinnyPlan>();
  const Problem p = plan.swapped ? transposed(problem) : problem;
  SkinnyJob job = {};
  float* const partials = static_cast<float*>(context.workspace);
  job.p = plan.slices > 1 ? product_of_slices(p, partials) : p;
  job.slice = plan.slice;
  job.slices = static_cast<int>(plan.slices);
  job.tiles_m = static_cast<int>(ceil_div(p.m, plan.rows));
  job.tiles_n = static_cast<int>(ceil_div(p.n, plan.width));
  job.b_vector = plan.slice % 4 == 0 && has_aligned_rows<4>(transposed(p.b));
  int log_width = 0;
  while (1 << log_width < plan.width) ++log_width;
  with_elements(p.a, p.elements_a, [&](const auto& a) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(a.data)>>;
    job.vector = plan.slice % 4 == 0 && has_aligned_rows<4>(plan.along_k ? a : transposed(a));
    with_constant<5>(log_width, [&](auto log) { launch_width<(1 << log), T>(job, plan, context); });
  });
  if (plan.slices > 1) launch_sum(partials, plan.slices, false, p, context);
}

}  // namespace sgemm::ieee
