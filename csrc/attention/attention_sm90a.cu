// Launches attention: planes of K and V, then the kernel that reads them.
#include <algorithm>
#include <cmath>

#include "../gpu/launch_cluster.cuh"
#include "../gpu/tensor_map.cuh"
#include "../problem/buffers.h"
#include "../problem/views.h"
#include "attention.cuh"
#include "convert.cuh"

namespace sgemm::attention {
namespace {

template <int DEPTH>
void launch_depth(const Job& job, const Context& context) {
  using S = Shape<DEPTH>;
  const Problem& p = job.p;
  launch(convert<S>, 2 * int64_t{job.blocks}, kConvertThreads, 0, 0, true, context.stream, job,
         has_aligned_rows<4>(p.k), has_aligned_rows<4>(p.v));
  const CUtensorMap queries = hopper::tensor_map(p.q, job.all_heads, 32, 64);
  with_constant(p.mask.kind != MaskKind::kNone, [&](auto masked) {
    launch_with_memory<attend<S, masked>>(std::min(job.tiles, context.device->sms), kThreads, S::kBytes, S::kBytes, 0,
                                          context.stream, job, queries);
  });
}

}  // namespace

void run(const Problem& p, const Context& context) {
  const Layout at = layout(p);
  char* const workspace = static_cast<char*>(context.workspace);
  Job job = {};
  job.p = p;
  job.all_heads = p.batches * p.heads;
  job.tiles_of_head = static_cast<int>(ceil_div(p.queries, kQueriesOfTile));
  job.blocks_of_group = static_cast<int>(at.blocks / (int64_t{p.batches} * p.groups));
  job.tiles = job.all_heads * job.tiles_of_head;
  job.blocks = static_cast<int>(at.blocks);
  job.k = workspace + at.k;
  job.v = workspace + at.v;
  job.k_scales = reinterpret_cast<float4*>(workspace + at.k_scales);
  job.v_scales = reinterpret_cast<float4*>(workspace + at.v_scales);
  job.factor = std::fabs(p.scale) * (p.mask.kind == MaskKind::kNone ? kLog2E : 1.0f);
  with_constant<4, 1>(compiled_depth(p) / 32, [&](auto depth) { launch_depth<32 * depth>(job, context); });
}

}  // namespace sgemm::attention
