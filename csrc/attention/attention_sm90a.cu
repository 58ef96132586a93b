// Launches attention: planes of K and V, then the kernel that reads them.
#include <algorithm>
#include <cmath>

#include "../gpu/launch_cluster.cuh"
#include "../gpu/tensor_map.cuh"
#include "../problem/buffers.h"
#include "../problem/views.h"
#include "attention.cuh"

namespace sgemm::attention {
namespace {

constexpr int kClearThreads = 256;

// A kernel starts sooner behind another one than behind cudaMemsetAsync.
__global__ void clear(int* flags, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kClearThreads + threadIdx.x;
  wait_for_predecessor();
  launch_dependents();
  if (i < count) flags[i] = 0;
}

template <int DEPTH>
void launch_depth(const Job& job, int blocks, const Context& context) {
  using S = Shape<DEPTH>;
  const Problem& p = job.p;
  const CUtensorMap queries = hopper::tensor_map(p.q, job.all_heads, 32, 64);
  const CUtensorMap keys = hopper::tensor_map(p.k, job.all_groups, 32, 64, true);
  const CUtensorMap values = hopper::tensor_map(p.v, job.all_groups, 32, 64, true);
  with_constant(p.mask.kind != MaskKind::kNone, [&](auto masked) {
    launch_with_memory<attend<S, masked>>(blocks, kThreads, S::kBytes, S::kBytes, 0, context.stream, job, queries, keys,
                                          values);
  });
}

// Heads whose tiles are in flight at the same time. Causal: waves of equal size, whose planes fit in the L2 cache, and
// no tile is the only one of its head, else all would wait for blocks.
int heads_of_wave(const Job& job, int blocks, const Device& device) {
  if (!job.p.causal) return std::min(static_cast<int>(ceil_div(blocks, job.tiles_of_head)), job.all_heads);
  const double planes = 2.0 * job.blocks_of_group * kBlockBytes * job.p.groups / job.p.heads;
  const double most = std::clamp(device.l2_mb * 1048576 * 2 / 3 / planes, 1.0, std::max(blocks / 2.0, 1.0));
  const int64_t waves = ceil_div(job.all_heads, static_cast<int64_t>(most));
  return static_cast<int>(ceil_div(job.all_heads, waves));
}

}  // namespace

void run(const Problem& p, const Context& context) {
  const Layout at = layout(p);
  char* const workspace = static_cast<char*>(context.workspace);
  Job job = {};
  job.p = p;
  job.all_heads = p.batches * p.heads;
  job.all_groups = p.batches * p.groups;
  job.padded_queries = padded_queries(p.queries);
  job.tiles_of_head = static_cast<int>(ceil_div(p.queries, kQueriesOfTile));
  job.blocks_of_group = static_cast<int>(at.blocks / job.all_groups);
  job.tiles = job.all_heads * job.tiles_of_head;
  job.blocks = static_cast<int>(at.blocks);
  job.k = workspace + at.k;
  job.v = workspace + at.v;
  job.k_scales = reinterpret_cast<float4*>(workspace + at.k_scales);
  job.v_scales = reinterpret_cast<float4*>(workspace + at.v_scales);
  job.claims = reinterpret_cast<int*>(workspace + at.flags);
  job.k_ready = reinterpret_cast<uint32_t*>(job.claims + 1);
  job.v_ready = job.k_ready + at.blocks;
  job.own = converts_own(p);
  if (!job.own)
    launch(clear, ceil_div(at.flag_count, kClearThreads), kClearThreads, 0, 0, true, context.stream, job.claims,
           at.flag_count);
  // Thread blocks without a tile convert.
  const int blocks = std::min(job.own ? job.tiles : std::max(job.tiles, 2 * job.blocks), context.device->sms);
  job.heads_of_wave = heads_of_wave(job, blocks, *context.device);
  job.groups_of_wave = static_cast<int>(ceil_div(job.heads_of_wave, p.heads / p.groups));
  job.factor = factor_of_sums(p);
  with_constant<4, 1>(compiled_depth(p) / 32, [&](auto depth) { launch_depth<32 * depth>(job, blocks, context); });
}

}  // namespace sgemm::attention
