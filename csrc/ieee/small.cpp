#include "small.h"

#include <algorithm>
#include <cmath>

#include "../common/fastest.h"
#include "../common/views.h"
#include "bound.h"

namespace sgemm::ieee {
namespace {

// Measured on an H200: fitted to 109,000 plans of 18,000 problems, so that the plan chosen is near the best, and to the
// times of 13,000 chosen ones.
struct Times {   // of a tile
  double fixed;  // from the launch to the first element and from the last sum to memory
  double turn;   // a step of k of a warp, and
  double step;   // of all warps of a block, as an SM does one after the other
  double block;  // and a block's end
};
constexpr Times kTimes[] = {
    {1.40e-6, 0.46e-6, 22.4e-9, 0.27e-6}, {1.40e-6, 0.60e-6, 27e-9, 0.50e-6}, {1.55e-6, 0.63e-6, 50e-9, 0.83e-6}};
constexpr double kFewTurns = 5, kLaterTurn = 0.585;  // what the first ones take, of which each later one takes so much
// A product of a short k and no more blocks than SMs takes less, in whichever way it is cut up: all of it
// up to so many of k, nothing less from so many on.
constexpr double kShortSeconds = 0.3e-6, kShort = 32, kLong = 128;
constexpr double kCaution = 1.02;  // to be chosen wrongly costs more than not to be chosen
// A product of no more blocks than SMs takes so many times the sum of all that, by tile and whether clusters share it:
// nothing hides what a block waits for.
constexpr double kAlone[kSmallCount][2] = {{1.02, 1.05}, {1.12, 1.17}, {1.27, 1.25}};
// The busiest SM has more blocks than the mean; how far it counts, and how much more with each turn of
// several blocks, which take turns at the FFMA pipe.
constexpr double kBusiest = 0.42, kBusiestTurn = 0.10;
constexpr double kWaveSeconds = 0.506e-6;  // until the next blocks begin where others have ended
// A cluster, each block more an SM, and each doubling where the transposed product is stored.
constexpr double kClusterSeconds = 0.80e-6, kNextOfClusterSeconds = 0.24e-6, kSwappedSeconds = 0.33e-6;
// The share of SMs that clusters of 1, 2, 4 and 8 use, with one block each and with several.
constexpr double kClusterRoom[2][4] = {{1, 1, 0.88, 0.945}, {1, 1, 0.955, 0.955}};
// A step takes so much longer: for A along k, for B, and for elements that are read one by one across k.
constexpr double kAAlongK = 1.30, kBAlongK = 1.01, kSinglesAcross = 0.82;
// A warp's step takes more where both operands lie across k, and for each of their rows that are read one by one.
constexpr double kBothAcrossSeconds = 0.135e-6, kSinglesSeconds = 2.4e-9;
// To add up slices, each of them, and how many times their sums are moved.
constexpr double kSumSeconds = 0.72e-6, kSliceSeconds = 3.6e-9, kSumMoves = 7.3;
constexpr int64_t kLeastSliced = 2048, kShortestPart = 512, kMostSlices = 128;  // of k, all of it and a block's
constexpr int64_t kSlicedBlocks = 2;                                            // of an SM
constexpr double kBandwidth = 0.70, kCacheBandwidth = 3.87;  // of a copy's: for what is read once, and for all reads
static_assert(sizeof kTimes / sizeof(Times) == kSmallCount);

// `p` as it is computed: transposed, if the plan says so.
int64_t blocks(const SmallPlan& plan, const Problem& p) {
  const SmallTile& tile = kSmallTiles[plan.tile];
  const int64_t tiles = ceil_div(p.m, tile.rows()) * ceil_div(p.n, tile.cols()) * p.batch;
  return tiles * plan.cluster * plan.slices;
}

double seconds(const SmallPlan& plan, const Problem& p, const SmallRead& a, const SmallRead& b, const Device& device) {
  const SmallTile& tile = kSmallTiles[plan.tile];
  const Times& times = kTimes[plan.tile];
  const int64_t tiles_m = ceil_div(p.m, tile.rows()), tiles_n = ceil_div(p.n, tile.cols());
  int level = 0;
  while (1 << level < plan.cluster) ++level;
  const auto of_multiprocessor = [&](bool several) {
    return static_cast<double>(blocks(plan, p)) / (device.sms * kClusterRoom[several][level]);
  };
  const bool several = of_multiprocessor(false) > 1;
  const double mean = of_multiprocessor(several);
  const double most = std::ceil(mean), waves = std::ceil(most / tile.resident[a.along_k][b.along_k]);
  const int64_t steps = ceil_div(ceil_div(p.k, plan.cluster * plan.slices), Small::BK);
  const double turns = static_cast<double>(ceil_div(steps, Small::kWarps));
  const double busy =
      mean + (most - mean) * (several ? std::min(1.0, kBusiest + kBusiestTurn * (turns - 1)) : kBusiest);

  const double of_a = double(tile.rows()) / (tile.rows() + tile.cols());
  const auto slower = [](const SmallRead& x, double along_k) {
    return x.along_k ? along_k : x.vector ? 0 : kSinglesAcross;
  };
  const double slow = 1 + of_a * slower(a, kAAlongK) + (1 - of_a) * slower(b, kBAlongK);
  const auto lines = [](const SmallRead& x, int64_t size, int most) {
    return x.vector ? 0.0 : static_cast<double>(std::min<int64_t>(size, most));
  };
  const double of_turn = (a.along_k || b.along_k ? 0 : kBothAcrossSeconds) +
                         kSinglesSeconds * (lines(a, p.m, tile.rows()) + lines(b, p.n, tile.cols()));
  const double of_wave = times.turn * (turns + (kLaterTurn - 1) * std::max(0.0, turns - kFewTurns)) + of_turn * turns;
  const double compute =
      (waves * of_wave + (waves - 1) * kWaveSeconds + busy * (times.step * slow * steps + times.block)) *
      kH200.clock_ghz / device.clock_ghz;

  const double bandwidth = device.bandwidth_gbs * 1e9;
  const double read = 4.0 * p.k * p.batch * (double(p.m) * tiles_n + double(p.n) * tiles_m);
  double total =
      times.fixed + std::max(compute + read / (kCacheBandwidth * bandwidth), bytes(p) / (kBandwidth * bandwidth));
  if (plan.cluster > 1)
    total += kClusterSeconds + kNextOfClusterSeconds * (most - 1) + (plan.swapped ? kSwappedSeconds * level : 0);
  if (plan.slices == 1 && mean <= 1) total *= kAlone[plan.tile][plan.cluster > 1];
  if (plan.slices > 1) total += kSumSeconds + plan.slices * (kSliceSeconds + kSumMoves * 4 * p.m * p.n / bandwidth);
  return total;
}

// The roundings of a block's `k`: a warp's chains of FMAs, their sum, and that of the warps.
int64_t roundings(int64_t k) {
  const int64_t turns = ceil_div(k, Small::BK * Small::kWarps), chains = ceil_div(turns, kSmallRun);
  return std::min<int64_t>(turns, kSmallRun) * Small::BK + std::max<int64_t>(0, chains - 1) + Small::kWarps - 1;
}

bool may_be_sliced(const Problem& p) { return p.k >= kLeastSliced && p.batch == 1; }

// The number of slices of k that fill the device.
int64_t most_slices(const Problem& p, const SmallTile& tile, int cluster, const Device& device) {
  if (!may_be_sliced(p)) return 1;
  const int64_t tiles = ceil_div(p.m, tile.rows()) * ceil_div(p.n, tile.cols());
  const int64_t full = kSlicedBlocks * device.sms / std::max<int64_t>(1, tiles * cluster);
  return std::clamp<int64_t>(std::min(full, p.k / (cluster * kShortestPart)), 1, kMostSlices);
}

// Calls `visit` with every plan.
template <class Visit>
void visit_plans(const Problem& problem, const Device& device, const Visit& visit) {
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

Plan as_row_has_it(const SmallPlan& plan, const Problem& p, const Device& device) {
  double seconds = plan.seconds;
  if (blocks(plan, plan.swapped ? transposed(p) : p) <= device.sms)
    seconds -= kShortSeconds * std::clamp((kLong - p.k) / (kLong - kShort), 0.0, 1.0);
  return {kCaution * seconds, plan.slices > 1 ? static_cast<size_t>(p.m * p.n * plan.slices * 4) : 0, plan};
}

}  // namespace

SmallRead small_read(const ConstMatrix& x) {
  const bool along_k = runs_along_k(x.col, x.row);
  return {along_k, has_aligned_rows<4>(along_k ? x : transposed(x))};
}

// The most of all plans: what a block adds up, then the cluster's blocks one by one, then the slices.
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
  return as_row_has_it(plan, p, device);
}

void Small::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  visit_plans(p, device, [&](const SmallPlan& plan) { visit(as_row_has_it(plan, p, device)); });
}

}  // namespace sgemm::ieee
