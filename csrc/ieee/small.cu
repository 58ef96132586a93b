// Launches a product of few tiles.
#include "small.cuh"

#include "../gpu/launch_cluster.cuh"
#include "../epilogue/split_k_reduction.cuh"

namespace sgemm::ieee {
namespace {

// Minimum number of blocks that read the same elements for the L1 cache to pay off. 256^3, with 16 such blocks, would
// take a sixth longer.
constexpr int64_t kManyBlocks = 32;

// Returns true if an operand is better read through the L1 cache: `rows` along m or n per block, read by `blocks`
// blocks. That does not pay if each block copies few rows along k, or lines of 64 bytes, because there are few requests
// anyway. Operands read element by element always go through L1.
bool is_shared(const SmallRead& read, int64_t rows, int64_t blocks) {
  return read.vector && blocks >= kManyBlocks && (read.along_k ? rows > 2 : rows < 16);
}

template <int TILE>
void launch_tile(const Problem& p, const SmallPlan& plan, const Context& context) {
  constexpr SmallTile kTile = kSmallTiles[TILE];
  const SmallRead a = small_read(p.a), b = small_read(transposed(p.b));
  const int64_t tiles_m = ceil_div(p.m, kTile.rows()), tiles_n = ceil_div(p.n, kTile.cols());
  SmallJob job = {p,
                  ceil_div(ceil_div(p.k, plan.cluster * plan.slices), 4) * 4,
                  plan.slices > 1,
                  static_cast<uint32_t>(tiles_m),
                  static_cast<uint32_t>(tiles_n),
                  a.vector,
                  b.vector,
                  is_shared(a, p.m, tiles_n * p.batch / matrices(p.a, p.batch)),
                  is_shared(b, p.n, tiles_m * p.batch / matrices(p.b, p.batch))};
  float* const partials = static_cast<float*>(context.workspace);
  if (job.sliced) {
    job.p = product_of_slices(p, partials);
    job.p.batch = plan.slices;
  }
  const int64_t blocks = tiles_m * tiles_n * job.p.batch * plan.cluster;
  with_constant(a.along_k, [&](auto a_along_k) {
    with_constant(b.along_k, [&](auto b_along_k) {
      with_constant(job.a_shared || job.b_shared, [&](auto shared) {
        constexpr int kBytes = SmallRing<TILE, a_along_k, b_along_k>::kBytes;
        launch_with_memory<small<TILE, a_along_k, b_along_k, shared>>(blocks, Small::kThreads, kBytes, kBytes,
                                                                      plan.cluster, context.stream, job);
      });
    });
  });
  if (job.sliced) launch_sum(partials, plan.slices, p, context);
}

}  // namespace

void Small::launch(const Problem& problem, const Plan& planned, const Context& context) {
  const auto plan = planned.own<SmallPlan>();
  const Problem p = plan.swapped ? transposed(problem) : problem;
  with_constant<kSmallCount>(plan.tile, [&](auto tile) { launch_tile<tile>(p, plan, context); });
}

}  // namespace sgemm::ieee
