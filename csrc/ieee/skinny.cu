// The launch of a product with few rows or columns.
#include "skinny.cuh"

#include "../common/launch_cluster.cuh"
#include "../common/sum.cuh"
#include "../common/views.h"

namespace sgemm::ieee {
namespace {

template <int WIDTH>
void launch_width(const SkinnyJob& job, const SkinnyPlan& plan, Stream stream) {
  const auto kernel = plan.along_k ? skinny_along_k<WIDTH> : skinny_along_m<WIDTH>;
  const int64_t tiles = int64_t{job.tiles_m} * job.tiles_n * job.p.batch * job.slices;
  launch(kernel, tiles * plan.cluster, kThreads, 0, plan.cluster, true, stream, job);
}

}  // namespace

void Skinny::launch(const Problem& problem, const Context& context) {
  const SkinnyPlan plan = skinny_plan(problem, *context.device);
  const Problem p = plan.swapped ? transposed(problem) : problem;
  SkinnyJob job = {};
  job.p = p;
  job.slice = plan.slice;
  job.slices = static_cast<int>(plan.slices);
  job.tiles_m = static_cast<int>(ceil_div(p.m, plan.rows));
  job.tiles_n = static_cast<int>(ceil_div(p.n, plan.width));
  const int64_t neighbour = plan.along_k ? p.a.col : p.a.row, across = plan.along_k ? p.a.row : p.a.col;
  job.vector = neighbour == 1 && across % 4 == 0 && has_groups<4>(p.a.batch) && plan.slice % 4 == 0 &&
               reinterpret_cast<uintptr_t>(p.a.data) % 16 == 0;
  job.b_vector = p.b.row == 1 && p.b.col % 4 == 0 && has_groups<4>(p.b.batch) && plan.slice % 4 == 0 &&
                 reinterpret_cast<uintptr_t>(p.b.data) % 16 == 0;
  float* partials = static_cast<float*>(context.workspace);
  if (plan.slices > 1) {
    job.p.d = {partials, p.m, p.n, p.n, 1, p.m * p.n};
    job.p.alpha = 1;
    job.p.beta = 0;
    job.p.activation = Activation::kNone;  // of the sum
  }
  switch (plan.width) {
    case 1:
      launch_width<1>(job, plan, context.stream);
      break;
    case 2:
      launch_width<2>(job, plan, context.stream);
      break;
    case 4:
      launch_width<4>(job, plan, context.stream);
      break;
    case 8:
      launch_width<8>(job, plan, context.stream);
      break;
    default:
      launch_width<16>(job, plan, context.stream);
  }
  if (plan.slices > 1) launch_sum(partials, plan.slices, p, context);
}

}  // namespace sgemm::ieee
