#include "small.h"

#include <algorithm>
#include <cmath>

#include "../gpu/clusters.h"
#include "../problem/cut.h"
#include "../problem/fastest.h"
#include "../problem/views.h"
#include "../models/models.h"
#include "bound.h"

namespace sgemm::ieee {
namespace {

constexpr int64_t kLeastSliced = 2048, kShortestPart = 512, kMostSlices = 128;  // minimum k, minimum k per block
constexpr int64_t kSlicedBlocks = 2;                                            // blocks per SM

// Number of blocks. Precondition: `p` is already transposed if the plan is swapped.
int64_t blocks(const SmallPlan& plan, const Problem& p) {
  const SmallTile& tile = kSmallTiles[plan.tile];
  const int64_t tiles = ceil_div(p.m, tile.rows()) * ceil_div(p.n, tile.cols()) * p.batch;
  return tiles * plan.cluster * plan.slices;
}

double seconds(const SmallPlan& plan, const Problem& p, const SmallRead& a, const SmallRead& b, const Device& device) {
  const SmallModel& model = models().small;
  const SmallTile& tile = kSmallTiles[plan.tile];
  const double area = tile.rows() * tile.cols() / 256.0;
  const double mean =
      static_cast<double>(blocks(plan, p)) / (clusters_at_once(device.sms, plan.cluster) * plan.cluster);
  const double most = std::ceil(mean), waves = std::ceil(most / tile.resident[a.along_k][b.along_k]);
  const int64_t steps = ceil_div(ceil_div(p.k, plan.cluster * plan.slices), Small::BK);
  const double turns = static_cast<double>(ceil_div(steps, Small::kWarps));
  const double busy = mean + (most - mean) * model.busiest;

  const auto read = [&](int length, const SmallRead& x) {
    return length / 16.0 * model.read * (1 + (!x.along_k && x.vector ? 0 : model.slower));
  };
  const double step = area * model.step + read(tile.rows(), a) + read(tile.cols(), b);
  const double compute =
      (waves * turns * model.turn + (most <= 1 ? area * model.alone : 0) + busy * (steps * step + area * model.block)) *
      kH200.clock_ghz / device.clock_ghz;

  const double bandwidth = device.bandwidth_gbs * 1e9;
  // SMs without a running block leave bandwidth unused.
  const double memory = bytes(p) / bandwidth * (mean > 0 ? busy / mean : 1);
  double total = model.fixed + overlapped(compute, memory);
  if (plan.cluster > 1) total += model.cluster + (most - 1) * model.next_cluster;
  if (plan.slices > 1) total += model.sum + plan.slices * model.sum_moves * 4 * p.m * p.n / bandwidth;
  return total;
}

// Number of roundings in a block's `k`: a warp's chain of FMAs, the sum of its chains, and the sum of the warps.
int64_t roundings(int64_t k) {
  const int64_t turns = ceil_div(k, Small::BK * Small::kWarps), chains = ceil_div(turns, kSmallRun);
  return std::min<int64_t>(turns, kSmallRun) * Small::BK + std::max<int64_t>(0, chains - 1) + Small::kWarps - 1;
}

bool may_be_sliced(const Problem& p) { return p.k >= kLeastSliced && p.batch == 1; }

// Returns the number of slices of k that fill the device.
int64_t most_slices(const Problem& p, const SmallTile& tile, int cluster, const Device& device) {
  if (!may_be_sliced(p)) return 1;
  const int64_t tiles = ceil_div(p.m, tile.rows()) * ceil_div(p.n, tile.cols());
  const int64_t full = kSlicedBlocks * device.sms / std::max<int64_t>(1, tiles * cluster);
  return std::clamp<int64_t>(std::min(full, p.k / (cluster * kShortestPart)), 1, kMostSlices);
}

// Calls `visit` with every plan.
template <class Visit>
void visit_plans(const Problem& problem, const Device& device, const Visit& visit) {
  const int most = problem.k > Small::BK * Small::kWarps ? kMostBlocks : 1;  // a step for each warp: nothing to share
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
          plan.seconds = seconds(plan, p, a, b, device);
          visit(plan);
        };
        consider(1);
        const int64_t slices = most_slices(p, kSmallTiles[tile], cluster, device);
        if (slices > 1) consider(slices);
      }
    }
  }
}

Plan as_row_has_it(const SmallPlan& plan, const Problem& p) {
  return {plan.seconds, plan.slices > 1 ? static_cast<size_t>(p.m * p.n * plan.slices * 4) : 0, plan};
}

}  // namespace

SmallRead small_read(const ConstMatrix& x) {
  const bool along_k = runs_along_k(x.col, x.row);
  return {along_k, has_aligned_rows<4>(along_k ? x : transposed(x))};
}

// The maximum over all plans: a block's additions, then one per further block of the cluster, then the slices'.
double Small::error_bound(int64_t k) {
  int64_t most = 0;
  for (int cluster = 1; cluster <= kMostBlocks; cluster *= 2) {
    const int64_t slices = k < kLeastSliced ? 1 : std::clamp<int64_t>(k / (cluster * kShortestPart), 1, kMostSlices);
    for (int64_t s = 1; s <= slices; ++s) {
      const int64_t part = ceil_div(ceil_div(k, cluster * s), 4) * 4;
      most = std::max(most, roundings(part) + cluster - 1 + sum_roundings(s));
    }
  }
  return ieee::error_bound(k, most);
}

Plan Small::plan(const Problem& p, const Device& device) {
  const auto plan = fastest<SmallPlan>([&](const auto& visit) { visit_plans(p, device, visit); });
  return as_row_has_it(plan, p);
}

void Small::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  visit_plans(p, device, [&](const SmallPlan& plan) { visit(as_row_has_it(plan, p)); });
}

std::string Small::cut(const Plan& planned) {
  const auto plan = planned.own<SmallPlan>();
  const SmallTile& tile = kSmallTiles[plan.tile];
  Cut cut;
  cut.tile(tile.rows(), tile.cols()).number("swapped", plan.swapped, 0);
  return cut.number("cluster", plan.cluster, 1).number("slices", plan.slices, 1).text();
}

}  // namespace sgemm::ieee
