#include "small.h"

#include <algorithm>
#include <limits>

#include "../common/views.h"

namespace sgemm::ieee {
namespace {

// Measured on an H200, for each tile: from the launch to the first element and from the last sum to memory; a step of
// all of a block's warps, where blocks keep a multiprocessor busy.
constexpr double kTileSeconds[] = {1.36e-6, 1.38e-6, 1.46e-6}, kStepSeconds[] = {0.575e-6, 0.9e-6, 1.3e-6};
constexpr double kAlone = 1.18;  // times as long for a step of one block
// For each block more a multiprocessor: of one block's tile, and of a cluster's, which are placed together.
constexpr double kNextSeconds = 0.76e-6, kNextOfClusterSeconds = 1.09e-6;
constexpr double kClusterSeconds[] = {0, 1.11e-6, 1.33e-6, 1.35e-6};  // of 1, 2, 4 and 8 blocks
constexpr double kBandwidth = 0.47, kScattered = 1.6;                 // of a copy's; elements that are read one by one
static_assert(sizeof kTileSeconds / sizeof(double) == kSmallCount);

double seconds(const SmallPlan& plan, const Problem& p, const Device& device) {
  const SmallTile& tile = kSmallTiles[plan.tile];
  const bool alone = plan.cluster == 1;
  const int64_t blocks = ceil_div(p.m, tile.rows()) * ceil_div(p.n, tile.cols()) * p.batch * plan.cluster;
  const double busiest = static_cast<double>(ceil_div(blocks, device.sms));
  const int64_t steps = ceil_div(ceil_div(p.k, plan.cluster), Small::BK);
  const double turns = std::max(kAlone * ceil_div(steps, Small::kWarps), busiest * steps / Small::kWarps);
  const double compute = turns * kStepSeconds[plan.tile] * kH200.clock_ghz / device.clock_ghz;
  const bool quads = small_read(p.a).vector && small_read(transposed(p.b)).vector;
  const double memory = bytes(p) / (kBandwidth * device.bandwidth_gbs * 1e9) * (quads ? 1 : kScattered);
  int level = 0;
  while (1 << level < plan.cluster) ++level;
  return kTileSeconds[plan.tile] + kClusterSeconds[level] +
         std::max(0.0, busiest - 1) * (alone ? kNextSeconds : kNextOfClusterSeconds) + std::max(compute, memory);
}

}  // namespace

SmallRead small_read(const ConstMatrix& x) {
  const bool along_k = runs_along_k(x.col, x.row);
  const int64_t neighbour = along_k ? x.col : x.row, across = along_k ? x.row : x.col;
  return {along_k,
          neighbour == 1 && across % 4 == 0 && has_groups<4>(x.batch) && reinterpret_cast<uintptr_t>(x.data) % 16 == 0};
}

SmallPlan small_plan(const Problem& problem, const Device& device) {
  SmallPlan best = {0, false, 1, std::numeric_limits<double>::infinity()};
  for (const bool swapped : {false, true}) {
    const Problem p = swapped ? transposed(problem) : problem;
    for (int tile = 0; tile < kSmallCount; ++tile)
      for (int cluster = 1; cluster <= kMostBlocks; cluster *= 2) {
        SmallPlan plan = {tile, swapped, cluster, 0};
        const int64_t of_warp = ceil_div(ceil_div(p.k, cluster), Small::BK * Small::kWarps);
        if (!kSmallTiles[tile].any_depth && of_warp > kSmallRun) continue;
        plan.seconds = ieee::seconds(plan, p, device);
        if (plan.seconds < best.seconds) best = plan;
      }
  }
  return best;
}

double Small::seconds(const Problem& p, const Device& device) { return small_plan(p, device).seconds; }

}  // namespace sgemm::ieee
