#include "large.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../problem/buffers.h"
#include "../gpu/clusters.h"
#include "../gpu/stream_k.h"
#include "../problem/cut.h"
#include "../problem/fastest.h"
#include "../models/models.h"

namespace sgemm::ieee {
namespace {

int64_t tiles_of(const Problem& p, int rows) { return ceil_div(p.m, rows) * ceil_div(p.n, Large::BN) * p.batch; }

double step_seconds(int rows, const Device& device) {
  return 2.0 * rows * Large::BN * Large::BK / (256 * device.clock_ghz * 1e9 * models().large.ffma);
}

// Calls `visit` with every plan without clusters. The predicted times exclude copies and launches.
template <class Visit>
void visit_tiles(const Problem& p, bool quads, const Device& device, const Visit& visit) {
  const double ends = models().large.tile + (quads ? 0 : models().large.elements);
  const int64_t tiles = tiles_of(p, Large::BM), steps = ceil_div(p.k, Large::BK);
  const double step = step_seconds(Large::BM, device), tile = steps * step + ends;
  LargePlan plan = {};
  plan.slices = 1;
  plan.whole = tiles;
  plan.blocks = static_cast<int>(std::min<int64_t>(tiles, device.sms));
  plan.seconds = ceil_div(tiles, device.sms) * tile;
  visit(plan);
  const StreamK deal = stream_k(tiles, steps, device.sms);
  if (!deal.sharing) return;
  plan.whole = deal.whole;
  plan.left = deal.left();
  plan.sharing = deal.sharing;
  plan.blocks = plan.whole ? device.sms : plan.sharing;
  plan.seconds = tiles / device.sms * tile + ceil_div(plan.left * steps, plan.sharing) * step + ends +
                 models().large.share + ceil_div(plan.sharing, plan.left) * models().large.part;
  visit(plan);
}

// The same for plans with clusters.
template <class Visit>
void visit_clusters(const Problem& p, bool quads, const Device& device, const Visit& visit) {
  constexpr int kRows = Large::BM / 2;
  const double ends = models().large.tile + (quads ? 0 : models().large.exchange);
  const int64_t tiles = tiles_of(p, kRows), steps = ceil_div(p.k, Large::BK);
  const double result = 4.0 * p.m * p.n / (device.bandwidth_gbs * 1e9);
  const int64_t most = p.batch == 1 ? std::min(device.sms / std::max<int64_t>(1, tiles), steps) : 1;
  for (int64_t slices = 1; slices == 1 || slices <= most; slices = std::max(slices + 1, slices * 5 / 4))
    for (int cluster = 1; cluster <= 4; ++cluster) {
      const int64_t blocks = tiles * slices * cluster, parts = slices * cluster;
      if (steps < parts || (cluster > 1 && tiles * slices > clusters_at_once(device.sms, cluster))) continue;
      const double tile =
          ceil_div(steps, parts) * step_seconds(kRows, device) + ends + (cluster - 1) * models().large.cluster;
      const double sum = slices == 1 ? 0 : models().large.sum + (slices + 1) * result;
      LargePlan plan = {};
      plan.cluster = cluster;
      plan.slices = static_cast<int>(slices);
      plan.whole = tiles;
      plan.blocks = static_cast<int>(blocks);
      plan.seconds = ceil_div(blocks, device.sms) * tile + sum;
      visit(plan);
    }
}

template <class Visit>
void visit_plans(const Problem& p, const Device& device, const Visit& visit) {
  const bool quads = p.n % 4 == 0;  // D's rows can be stored four elements at a time
  visit_tiles(p, quads, device, visit);
  visit_clusters(p, quads, device, visit);
}

// Precondition: p is transposed already if the plan swaps operands.
LargeLayout layout(const Problem& p, const LargePlan& plan) {
  LargeLayout l = {};
  Buffers buffers;
  const auto copy = [&](const ConstMatrix& x) { return 4 * matrices(x, p.batch) * x.rows * packed_cols(x); };
  l.copy_a = buffers.take(plan.pack_a ? copy(transposed(p.a)) : 0);
  l.copy_b = buffers.take(plan.pack_b ? copy(p.b) : 0);
  l.parts = buffers.take(plan.left ? 4 * (plan.sharing + plan.left) * Large::BM * Large::BN : 0);
  l.arrived = buffers.take(4 * plan.left);
  l.partials = buffers.take(plan.slices > 1 ? 4 * p.m * p.n * plan.slices : 0);
  l.total = buffers.total;
  return l;
}

// Adds operand copies, the launch and the layout to a plan.
LargePlan whole(LargePlan plan, const Problem& p, const Device& device) {
  plan.pack_a = p.k > 0 && !can_be_mapped(transposed(p.a), matrices(p.a, p.batch));
  plan.pack_b = p.k > 0 && !can_be_mapped(p.b, matrices(p.b, p.batch));
  const double bandwidth = device.bandwidth_gbs * 1e9;
  plan.seconds = std::max(plan.seconds, bytes(p) / bandwidth) + models().large.launch;
  for (const auto& [copied, x] : {std::pair{plan.pack_a, &p.a}, std::pair{plan.pack_b, &p.b}})
    if (copied)
      plan.seconds += models().large.copy +
                      8.0 * x->rows * x->cols * matrices(*x, p.batch) / (models().large.copy_bandwidth * bandwidth);
  plan.layout = layout(p, plan);
  return plan;
}

LargePlan fastest_plan(const Problem& p, const Device& device) {
  return whole(fastest<LargePlan>([&](const auto& visit) { visit_plans(p, device, visit); }), p, device);
}

}  // namespace

LargePlan large_plan(const Problem& p, const Device& device) {
  const LargePlan upright = fastest_plan(p, device);
  LargePlan swapped = fastest_plan(transposed(p), device);
  swapped.swapped = true;
  return swapped.seconds < upright.seconds ? swapped : upright;
}

Plan Large::plan(const Problem& p, const Device& device) {
  LargePlan plan = {};
  double seconds = 0;
  size_t most = 0;
  for_each_piece(p, large_pieces(p), [&](const Problem& piece) {
    plan = large_plan(piece, device);
    seconds += plan.seconds;
    most = std::max(most, plan.layout.total);
  });
  return {std::max(seconds, models().large.launch), large_slices_bytes(p) + most,
          plan};  // the minimum is for products with nothing to compute
}

// A problem of several pieces of k has one plan.
void Large::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  if (large_pieces(p).of_k(p) > 1) return visit(plan(p, device));
  for (const bool swapped : {false, true}) {
    const Problem q = swapped ? transposed(p) : p;
    visit_plans(q, device, [&](const LargePlan& found) {
      LargePlan plan = whole(found, q, device);
      plan.swapped = swapped;
      visit({plan.seconds, plan.layout.total, plan});
    });
  }
}

std::string Large::cut(const Plan& planned) {
  const auto plan = planned.own<LargePlan>();
  Cut cut;
  cut.tile(plan.cluster ? BM / 2 : BM, BN).number("swapped", plan.swapped, 0);
  cut.number("cluster", std::max(1, plan.cluster), 1).number("slices", plan.slices, 1);
  return cut.number("sharing", plan.sharing, 0).text();
}

}  // namespace sgemm::ieee
