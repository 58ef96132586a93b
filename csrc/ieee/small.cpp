#include "small.h"

#include <algorithm>
#include <limits>

#include "../common/views.h"

namespace sgemm::ieee {
namespace {

// Measured on an H200, for each tile: from the launch to the first element and from the last sum to memory; a step of k
// of all warps of a block.
constexpr double kTileSeconds[] = {1.5e-6, 1.83e-6, 2.33e-6}, kStepSeconds[] = {0.35e-6, 0.73e-6, 1.1e-6};
constexpr double kTurnSeconds = 0.46e-6;  // more for each step of a warp, which waits for its copies
constexpr double kLeastBusy = 0.34;       // of those steps, where few multiprocessors have a block
// For each block more a multiprocessor: of one block's tile, and of a cluster's, which are placed together.
constexpr double kNextSeconds = 0.7e-6, kNextOfClusterSeconds = 0.83e-6;
constexpr double kClusterSeconds[] = {0, 1e-6, 1.18e-6, 1.18e-6};  // of 1, 2, 4 and 8 blocks
// More for elements that are read one by one: across k, and along k.
constexpr double kScattered[2] = {0.11, 0.29};
// On top, for 16 lines of single elements across k, and each step of a warp behind its first. Plans were compared
// without it.
constexpr double kElementsSeconds = 1.2e-6;
// Of slices of k: one launch more; of the steps' time, as several blocks a multiprocessor wait by turns.
constexpr double kSumSeconds = 3e-6, kSlicedShare = 0.7;
constexpr int64_t kLeastSliced = 8192, kShortestPart = 512, kMostSlices = 64;  // of k, all of it and a block's
constexpr int64_t kResident = 2;                                               // blocks of a multiprocessor
constexpr double kBandwidth = 0.55, kCacheBandwidth = 3.8;  // of a copy's: for what is read once, and for all reads
static_assert(sizeof kTileSeconds / sizeof(double) == kSmallCount);

double seconds(const SmallPlan& plan, const Problem& p, const SmallRead& a, const SmallRead& b, const Device& device) {
  const SmallTile& tile = kSmallTiles[plan.tile];
  const int64_t tiles_m = ceil_div(p.m, tile.rows()), tiles_n = ceil_div(p.n, tile.cols());
  const int64_t blocks = tiles_m * tiles_n * p.batch * plan.cluster * plan.slices;
  const int64_t steps = ceil_div(ceil_div(p.k, plan.cluster * plan.slices), Small::BK);
  const double most = static_cast<double>(ceil_div(blocks, device.sms));  // blocks of a multiprocessor
  const double busy = std::max(kLeastBusy, (most + double(blocks) / device.sms) / 2);
  const auto scattered = [](const SmallRead& x) { return x.vector ? 0 : kScattered[x.along_k]; };
  const double slow = 1 + (scattered(a) * tile.rows() + scattered(b) * tile.cols()) / (tile.rows() + tile.cols());
  const double compute =
      (kTurnSeconds * ceil_div(steps, Small::kWarps) + kStepSeconds[plan.tile] * busy * steps / Small::kWarps) * slow *
      (plan.slices > 1 ? kSlicedShare : 1) * kH200.clock_ghz / device.clock_ghz;
  const double bandwidth = device.bandwidth_gbs * 1e9;
  const double read = 4.0 * p.k * p.batch * (double(p.m) * tiles_n + double(p.n) * tiles_m);
  int level = 0;
  while (1 << level < plan.cluster) ++level;
  const double adding =
      plan.slices > 1 ? kSumSeconds + 8.0 * p.m * p.n * plan.slices / (kCacheBandwidth * bandwidth) : 0;
  return kTileSeconds[plan.tile] + kClusterSeconds[level] + adding +
         std::max(0.0, most - 1) * (plan.cluster == 1 ? kNextSeconds : kNextOfClusterSeconds) +
         std::max(compute + read / (kCacheBandwidth * bandwidth), bytes(p) / (kBandwidth * bandwidth));
}

double element_seconds(const SmallPlan& plan, const Problem& problem) {
  const Problem p = plan.swapped ? transposed(problem) : problem;
  const SmallTile& tile = kSmallTiles[plan.tile];
  const auto lines = [](const SmallRead& x, int64_t size, int most) {
    return x.along_k || x.vector ? 0 : std::min<int64_t>(size, most) / 16.0;
  };
  const double part = static_cast<double>(p.k) / (plan.cluster * plan.slices);
  return kElementsSeconds * std::max(0.0, part / (Small::BK * Small::kWarps) - 1) *
         (lines(small_read(p.a), p.m, tile.rows()) + lines(small_read(transposed(p.b)), p.n, tile.cols()));
}

// Of k, until the device is full.
int64_t most_slices(const Problem& p, const SmallTile& tile, int cluster, const Device& device) {
  if (p.k < kLeastSliced || p.batch > 1) return 1;
  const int64_t tiles = ceil_div(p.m, tile.rows()) * ceil_div(p.n, tile.cols());
  const int64_t full = kResident * device.sms / std::max<int64_t>(1, tiles * cluster);
  return std::clamp<int64_t>(std::min(full, p.k / (cluster * kShortestPart)), 1, kMostSlices);
}

}  // namespace

SmallRead small_read(const ConstMatrix& x) {
  const bool along_k = runs_along_k(x.col, x.row);
  return {along_k, has_aligned_rows<4>(along_k ? x : transposed(x))};
}

SmallPlan small_plan(const Problem& problem, const Device& device) {
  SmallPlan best = {0, false, 1, 1, std::numeric_limits<double>::infinity()};
  const int most = problem.k > Small::BK * Small::kWarps ? kMostBlocks : 1;  // a step of each warp: nothing to share
  for (const bool swapped : {false, true}) {
    const Problem p = swapped ? transposed(problem) : problem;
    const SmallRead a = small_read(p.a), b = small_read(transposed(p.b));
    for (int tile = 0; tile < kSmallCount; ++tile) {
      if (swapped && kSmallTiles[tile].rows() == kSmallTiles[tile].cols()) continue;  // the same tiles
      for (int cluster = 1; cluster <= most; cluster *= 2) {
        const auto consider = [&](int64_t slices) {
          const int64_t of_warp = ceil_div(ceil_div(p.k, cluster * slices), Small::BK * Small::kWarps);
          if (!kSmallTiles[tile].any_depth && of_warp > kSmallRun) return;
          SmallPlan plan = {tile, swapped, cluster, slices, 0};
          plan.seconds = ieee::seconds(plan, p, a, b, device);
          if (plan.seconds < best.seconds) best = plan;
        };
        consider(1);
        const int64_t slices = most_slices(p, kSmallTiles[tile], cluster, device);
        if (slices > 1) consider(slices);
      }
    }
  }
  return best;
}

size_t Small::workspace(const Problem& p, const Device& device) {
  if (p.k < kLeastSliced) return 0;  // a plan takes its time
  const SmallPlan plan = small_plan(p, device);
  return plan.slices > 1 ? static_cast<size_t>(p.m * p.n * plan.slices * 4) : 0;
}

double Small::seconds(const Problem& p, const Device& device) {
  const SmallPlan plan = small_plan(p, device);
  return plan.seconds + element_seconds(plan, p);
}

}  // namespace sgemm::ieee
