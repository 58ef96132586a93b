// Launches the gradients of attention: planes, then dK, dV and dQ, for each slice in turn.
#include <algorithm>
#include <cmath>

#include "../../gpu/launch_cluster.cuh"
#include "../../problem/buffers.h"
#include "keys.cuh"
#include "prepare.cuh"
#include "queries.cuh"
#include "resident.cuh"

namespace sgemm::attention::backward {
namespace {

template <class S, bool MASKED>
__global__ void __launch_bounds__(kThreads, 1) differentiate(const __grid_constant__ Job job) {
  extern __shared__ __align__(1024) char memory[];
  // Behind the ring, so that one register holds the address of both.
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory + S::kBytes);
  shared.init();
  __syncthreads();
  wait_for_predecessor();
  launch_dependents();
  if (threadIdx.x < 128) {
    hopper::release_registers<kProducerRegisters>();
    if (threadIdx.x == 0) Producer<S>(job, memory, shared).run();
  } else {
    hopper::acquire_registers<kConsumerRegisters>();
    using Blocks = Ring<S>;
    KeyGradients<Blocks, MASKED> keys{Consumer<Blocks>(job, memory, shared)};
    keys.run();
    QueryGradients<Blocks, MASKED> queries(keys);
    queries.run();
    queries.finish();
  }
}

template <int DEPTH>
void launch_depth(const Job& job, const Context& context) {
  using S = Shape<DEPTH>;
  launch(prepare<S>, int64_t{job.heads} * job.query_blocks + int64_t{job.groups} * job.key_blocks, S::kPassThreads, 0,
         0, true, context.stream, job);
  constexpr int kBytes = S::kBytes + sizeof(Shared<S>);
  static_assert(kBytes <= 227 * 1024);
  with_constant(job.g.p.mask.kind != MaskKind::kNone, [&](auto masked) {
    launch_with_memory<differentiate<S, masked>>(std::min(job.all_tiles, context.device->sms), kThreads, kBytes, kBytes,
                                                 0, context.stream, job);
  });
}

void launch_short(const Job& job, const Context& context) {
  using S = Shape<64>;
  constexpr int kBytes = Resident<S>::kBytes + sizeof(ResidentMemory);
  with_constant(job.g.p.mask.kind != MaskKind::kNone, [&](auto masked) {
    launch_with_memory<differentiate_resident<S, masked>>(std::min(job.all_tiles, context.device->sms), kConsumers,
                                                          kBytes, kBytes, 0, context.stream, job);
  });
}

// Returns a slice's sizes, and what it takes from the workspace.
Job job_of(const Gradients& g, const Layout& at, const Context& context) {
  const Problem& p = g.p;
  char* const workspace = static_cast<char*>(context.workspace);
  Job job = {};
  job.g = g;
  job.padded_queries = padded_queries(p.queries);
  job.heads = p.batches * p.heads;
  job.groups = p.batches * p.groups;
  job.share = p.heads / p.groups;
  job.query_blocks = static_cast<int>(ceil_div(p.queries, kRows));
  job.key_blocks = static_cast<int>(ceil_div(p.keys, kRows));
  job.query_tiles = static_cast<int>(ceil_div(p.queries, kTile));
  job.key_tiles = static_cast<int>(ceil_div(p.keys, kTile));
  job.all_key_tiles = g.k.data ? job.groups * job.key_tiles : 0;
  job.all_tiles = job.all_key_tiles + (g.q.data || g.mask ? job.heads * job.query_tiles : 0);
  job.q = workspace + at.q;
  job.grad = workspace + at.grad;
  job.k = workspace + at.k;
  job.v = workspace + at.v;
  job.queries = reinterpret_cast<QueryBlock*>(workspace + at.queries);
  job.keys = reinterpret_cast<KeyBlock*>(workspace + at.keys);
  job.claims = reinterpret_cast<int*>(workspace + at.claims);
  job.factor = factor_of_sums(p);
  return job;
}

}  // namespace

void run(const Gradients& g, const Context& context) {
  const Device& device = *context.device;
  const Layout at = layout(g, device);
  if (stay_in_shared_memory(g, device)) {
    Job job = job_of(g, at, context);
    if (!job.all_tiles) return;
    job.all_tiles = static_cast<int>(ceil_div(job.heads, 2));
    launch_short(job, context);
    return;
  }
  // A slice's first kernel waits for the last one of the slice before, which reads the same workspace.
  const Slice largest = largest_slice(g);
  for (int batch = 0; batch < g.p.batches; batch += largest.batches)
    for (int group = 0; group < g.p.groups; group += largest.groups) {
      const Job job = job_of(slice_at(g, largest, batch, group), at, context);
      if (!job.all_tiles) continue;
      if (compiled_depth(g) == 64)
        launch_depth<64>(job, context);
      else
        launch_depth<128>(job, context);
    }
}

}  // namespace sgemm::attention::backward
