// Launches a kernel of persistent blocks, which take the job's work tiles in turn.
#pragma once
#include <algorithm>

#include "../../gpu/launch_cluster.cuh"
#include "../plan/staged_band.cuh"

namespace sgemm::split {

// Each block has `bytes` of shared memory, and behind them the memory that stages sums.
template <auto KERNEL, class... Params>
void launch_persistent(int threads, int bytes, int sms, int cluster, Stream stream, const Job& job,
                       const Params&... params) {
  bytes += kStagingBytes;
  // If no tiles are shared, launch only the blocks that equal waves need: fewer blocks leave power for a higher clock.
  const int64_t most = sms / cluster, waves = ceil_div(int64_t{job.work_tiles}, most);
  const int64_t clusters =
      job.parts > 1 ? std::min<int64_t>(job.work_tiles, most) : ceil_div(int64_t{job.work_tiles}, waves);
  launch_with_memory<KERNEL>(clusters * cluster, threads, bytes, bytes, cluster, stream, job, params...);
}

}  // namespace sgemm::split
