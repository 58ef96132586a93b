#include "skinny.h"

#include <algorithm>

#include "../problem/elements.h"
#include "../problem/views.h"
#include "../models/models.h"
#include "../problem/cut.h"
#include "bound.h"

namespace sgemm::ieee {
namespace {

constexpr int64_t kResident = 2;        // blocks per SM
constexpr int64_t kShortestPart = 256;  // minimum k per block

}  // namespace

SkinnyPlan skinny_plan(const Problem& problem, const Device& device) {
  SkinnyPlan plan = {};
  plan.swapped = problem.m < problem.n;
  const Problem p = plan.swapped ? transposed(problem) : problem;
  plan.along_k = runs_along_k(p.a.col, p.a.row);
  plan.width = 1;
  while (plan.width < p.n && plan.width < 16) plan.width *= 2;
  plan.rows = plan.along_k ? 32 : 128;
  const int64_t tiles_m = ceil_div(p.m, plan.rows), tiles_n = ceil_div(p.n, plan.width);
  const int64_t tiles = tiles_m * tiles_n * p.batch;
  // Capacity for concurrent blocks. Clusters stay within a GPC, which they may not fill. If A lies along m, a few
  // blocks beyond the capacity do no harm.
  const auto room = [&](int64_t cluster) {
    return kResident * device.sms * (cluster <= 2 || !plan.along_k ? 10 : cluster == 4 ? 9 : 8) / 10;
  };
  // Splits k until the device is full: first over a cluster's blocks, then into slices.
  const auto fits = [&](int64_t cluster, int64_t slices) {
    return tiles * cluster * slices <= room(cluster) && p.k >= cluster * slices * kShortestPart;
  };
  plan.cluster = 1;
  plan.slices = 1;
  while (plan.cluster < 8 && fits(2 * plan.cluster, 1)) plan.cluster *= 2;
  while (p.batch == 1 && fits(plan.cluster, 2 * plan.slices)) plan.slices *= 2;
  plan.slice = std::max<int64_t>(1, ceil_div(p.k, plan.slices));
  plan.slices = std::max<int64_t>(1, ceil_div(p.k, plan.slice));

  const int64_t parts = tiles * plan.cluster * plan.slices, waves = ceil_div(parts, room(plan.cluster));
  const double bandwidth = device.bandwidth_gbs * 1e9, peak = device.sms * 256.0 * device.clock_ghz * 1e9;
  const int64_t across = plan.along_k ? p.a.row : p.a.col;
  const bool quads = (plan.along_k ? p.a.col : p.a.row) == 1 && across % 4 == 0;
  const SkinnyModel& model = models().skinny;
  const double share = plan.along_k ? model.read_along_k : plan.width <= 8 ? model.read_along_m : model.read_along_m_16;
  const double part_k = plan.slice / double(plan.cluster), part = plan.rows * plan.width * part_k;
  const int bytes_a = element_bytes(p.elements_a);
  const double alone = plan.rows * part_k * bytes_a / model.block_bandwidth;
  // Threads whose rows lie outside read nothing, which leaves fewer bytes in flight.
  const double rows = static_cast<double>(tiles_m * plan.rows);
  const double moved = (rows * tiles_n * bytes_a + p.n * 4.0) * p.k * p.batch;
  const double read = std::max(alone, moved / (share * bandwidth));
  const double across_b = tiles_n > 1 ? model.ffma_across_wide_b : model.ffma_across_b;
  const double ffma = !plan.along_k ? model.ffma_along_m : p.b.row == 1 ? model.ffma_along_k : across_b;
  const double compute = waves * kResident * part * 2 * device.sms / (ffma * peak);
  const double result = double(p.m) * p.n * p.batch * 4 / bandwidth;
  const double sum = plan.slices > 1 ? model.sum + result * (plan.slices + 1) : 0;
  const double later = std::max<int64_t>(0, waves - 1) * model.wave;  // no wave: nothing to do
  plan.seconds = model.fixed + later + std::max(compute, read) * (quads ? 1 : model.scattered) + result + sum;
  return plan;
}

Plan Skinny::plan(const Problem& p, const Device& device) {
  const SkinnyPlan plan = skinny_plan(p, device);
  return {plan.seconds, plan.slices > 1 ? static_cast<size_t>(p.m * p.n * plan.slices * 4) : 0, plan};
}

void Skinny::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) { visit(plan(p, device)); }

std::string Skinny::cut(const Plan& planned) {
  const auto plan = planned.own<SkinnyPlan>();
  Cut cut;
  cut.tile(plan.rows, plan.width).number("swapped", plan.swapped, 0);
  return cut.number("cluster", plan.cluster, 1).number("slices", plan.slices, 1).text();
}

// The maximum over all plans: a block's additions, then one per further block of the cluster, then the slices'. If A
// lies along k, a lane has a chain of four FMAs per 128 of k, and 5 shuffles add up the lanes. If A lies along m, a
// warp has every eighth of k in chains, which are added up before the warps.
double Skinny::error_bound(int64_t k) {
  constexpr int64_t kWarps = kThreads / 32;
  int64_t most = 0;
  for (int64_t cluster = 1; cluster <= 8; cluster *= 2)
    for (int64_t slices = 1; slices == 1 || slices <= k / (cluster * kShortestPart); slices *= 2) {
      const int64_t part = skinny_part({false, false, 0, 0, static_cast<int>(cluster), ceil_div(k, slices), slices, 0});
      const int64_t along_k = 4 * ceil_div(part, 128) + 5;
      const int64_t along_m = std::min(ceil_div(part, kWarps), kSkinnyChain / kWarps) +
                              std::max<int64_t>(0, ceil_div(part, kSkinnyChain) - 1) + kWarps - 1;
      most = std::max(most, std::max(along_k, along_m) + cluster - 1 + sum_roundings(slices));
    }
  return ieee::error_bound(k, most);
}

}  // namespace sgemm::ieee
