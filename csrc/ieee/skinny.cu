// Launches a product with few rows or columns.
#include "skinny.cuh"

#include "../gpu/launch_cluster.cuh"
#include "../epilogue/split_k_reduction.cuh"

namespace sgemm::ieee {
namespace {

template <int WIDTH, class T>
void launch_width(const SkinnyJob& job, const SkinnyPlan& plan, Stream stream) {
  const auto kernel = plan.along_k ? skinny_along_k<WIDTH, T> : skinny_along_m<WIDTH, T>;
  const int64_t tiles = int64_t{job.tiles_m} * job.tiles_n * job.p.batch * job.slices;
  const int bytes = plan.along_k ? 0 : chain_bytes(WIDTH, skinny_part(plan));
  if (bytes) allow_shared_bytes<skinny_along_m<WIDTH, T>>(bytes);
  launch(kernel, tiles * plan.cluster, kThreads, bytes, plan.cluster, true, stream, job);
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
    with_constant<5>(log_width, [&](auto log) { launch_width<(1 << log), T>(job, plan, context.stream); });
  });
  if (plan.slices > 1) launch_sum(partials, plan.slices, p, context);
}

}  // namespace sgemm::ieee
