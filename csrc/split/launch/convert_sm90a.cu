// Launches the convert kernel: chooses the threads per block, and assigns rows and strips to blocks.
#include <algorithm>

#include "../../gpu/launch_cluster.cuh"
#include "../convert/convert.cuh"
#include "launches.h"

namespace sgemm::split {
namespace {

int next_power_of_two(int64_t x) {
  int power = 1;
  while (power < x) power *= 2;
  return power;
}

// Shared memory, bytes, that keeps a block of the convert kernel alone on its SM. Blocks start while the previous
// kernel still runs, and would otherwise crowd on the few SMs that are free then.
constexpr int kAloneBytes = 116 * 1024;

struct ConvertLaunch {
  ConvertGrid grid;
  bool strips;  // an operand that is split comes in strips of columns
  int cluster;
  int64_t blocks;
};

ConvertLaunch plan_convert(const Job& job, bool split_a, bool split_b, int threads) {
  const int64_t depth = int64_t{job.steps} * kStep;
  const bool strips = (split_a && !job.a.along_k) || (split_b && !job.b.along_k);
  const int cluster = strips ? static_cast<int>(ceil_div(depth, kHeld * threads / kStripQuads)) : 1;
  ConvertGrid grid = {};
  grid.row_threads = std::max(8, next_power_of_two(ceil_div(depth, 4 * kHeld)));
  const auto blocks = [&](const Operand& x) {
    const int64_t panels = x.count * x.panels;
    return x.along_k ? ceil_div(x.split * grid.row_threads, threads) : panels * (kTile / kStrip) * cluster;
  };
  grid.busy_b = split_b ? blocks(job.b) : 0;
  grid.busy_a = split_a ? blocks(job.a) : 0;
  grid.blocks_b = ceil_div(grid.busy_b, cluster) * cluster;
  return {grid, strips, cluster, grid.blocks_b + ceil_div(grid.busy_a, cluster) * cluster};
}

}  // namespace

template <class F>
void launch_convert(const Job& job, bool split_a, bool split_b, int64_t product_blocks, int sms, Stream stream) {
  const int64_t depth = int64_t{job.steps} * kStep;
  // Use the smallest blocks that leave SMs free for the product's blocks, which are then ready when the convert kernel
  // ends. It leaves as many SMs as the product has blocks, but at least a quarter of all and at most half. A block
  // holds as much k of a strip as it has threads; a cluster of blocks holds more.
  const int64_t others = sms - std::clamp<int64_t>(product_blocks, sms / 4, sms / 2);
  const bool few_rows = job.b.split < kTile && !split_a && job.b.along_k;
  ConvertLaunch convert;
  const auto fits = [&](int threads) {
    convert = plan_convert(job, split_a, split_b, threads);
    if (convert.strips && depth > kMaxCluster * 512) return threads == 1024;
    const bool short_rows = depth <= 1024 || (few_rows && convert.grid.row_threads <= threads);
    const bool few = convert.cluster <= kMaxCluster && short_rows && convert.blocks <= others;
    return threads == 512 || few || (convert.strips && depth <= threads);
  };
  int size = 0;
  while (!fits(128 << size)) ++size;
  with_constant<4>(size, [&](auto size) {
    constexpr int kThreads = 128 << size, kBytes = Held<kThreads, true>::kBytes;
    constexpr int kMostBytes = std::max(kBytes, kAloneBytes);
    const int bytes = convert.blocks <= sms ? kMostBytes : kBytes;
    const auto run = [&](auto float32) {
      launch_with_memory<split_convert<F, kThreads, float32>>(convert.blocks, kThreads, bytes, kMostBytes,
                                                              convert.cluster, stream, job, convert.grid);
    };
    if constexpr (std::is_same_v<F, Fp16x3>) {
      const auto is_float32 = [](const Operand& x) { return x.elements == ElementType::kFloat32; };
      if (!is_float32(job.a) || !is_float32(job.b)) return run(std::false_type());
    }
    run(std::true_type());
  });
}
template void launch_convert<Bf16x6>(const Job&, bool, bool, int64_t, int, Stream);
template void launch_convert<Fp16x3>(const Job&, bool, bool, int64_t, int, Stream);

}  // namespace sgemm::split
