#include "native16.h"

#include <algorithm>

#include "../../gpu/clusters.h"
#include "../../models/models.h"
#include "../../problem/cut.h"
#include "../../problem/fastest.h"

namespace sgemm::split {
namespace {

double seconds(const Problem& p, const Device& device, const TileSize& tile, const Native16Plan& plan) {
  const UnsplitModel& model = models().unsplit;
  const StreamK& deal = plan.deal;
  const bool half = tile.bm == kTile;
  const double product =
      (plan.long_windows ? model.long_step * (half ? model.half_long : 1) : model.step * (half ? model.half_step : 1)) /
      device.tensor_rate;
  // The tiles that share a panel divide its search.
  const double searched =
      2.0 * Native16::BK *
      (tile.bm / std::max<double>(1, ceil_div(p.n, tile.bn)) + tile.bn / std::max<double>(1, ceil_div(p.m, tile.bm)));
  const double step = std::max(product, searched * model.searched);
  const double ends = model.tile * (half ? model.half_tile : 1);
  double waves = ceil_div(int64_t{deal.whole} * plan.cluster, device.sms) *
                 (ceil_div(deal.steps, plan.cluster) * step + ends + (plan.cluster - 1) * model.cluster);
  if (deal.sharing)
    waves += ceil_div(int64_t{deal.left()} * deal.steps, deal.sharing) * step + ends + model.share +
             ceil_div(deal.sharing, deal.left()) * model.part;
  const double bandwidth = device.bandwidth_gbs * 1e9, result = 4.0 * p.m * p.n * p.batch;
  const double moved = operand_bytes(p) / 2 + result * (p.beta != 0 ? 2 : 1);
  const double mirror = is_gram(p) ? models().choice.launch + 2 * result / bandwidth : 0;
  return model.launch + std::max(waves, moved / (model.bandwidth * bandwidth)) + mirror;
}

}  // namespace

void Native16::each_plan(const Problem& asked, const Device& device, const PlanVisitor& visit) {
  const Problem p = solved(asked);
  for (int tile = 0; tile < static_cast<int>(kTiles.size()); ++tile) {
    const TileSize& size = kTiles[tile];
    const int64_t tiles = ceil_div(p.m, size.bm) * ceil_div(p.n, size.bn) * p.batch;
    const StreamK shared = stream_k(tiles, ceil_div(p.k, BK), device.sms);
    const StreamK whole = {shared.tiles, shared.steps, shared.tiles, 0};
    const auto visit_deal = [&](const StreamK& deal, int cluster) {
      const int blocks = cluster > 1 ? deal.tiles * cluster : std::min(device.sms, std::max(deal.whole, deal.sharing));
      const bool many = int64_t{deal.tiles} * deal.steps * (size.bm / kTile) > kManySteps * kStep / BK;
      const StreamKLayout layout = stream_k_layout(deal, int64_t{size.bm} * size.bn);
      const size_t flags = std::max(blocks * kSearchers / 32, kSearchFlags);
      const Native16Plan plan = {deal, blocks, cluster, p.k > kLongWindow && many, layout};
      visit({seconds(p, device, size, plan), layout.total + flags * sizeof(uint32_t), plan, tile});
    };
    visit_deal(whole, 1);
    if (shared.sharing) visit_deal(shared, 1);
    if (size.bm == kTile && tiles <= clusters_at_once(device.sms, 2) && whole.steps >= 2) visit_deal(whole, 2);
  }
}

Plan Native16::plan(const Problem& p, const Device& device) {
  return fastest<Plan>([&](const auto& visit) { each_plan(p, device, visit); });
}

std::string Native16::cut(const Plan& planned) {
  const auto plan = planned.own<Native16Plan>();
  Cut cut;
  cut.tile(kTiles[planned.tile].bm, kTiles[planned.tile].bn).number("cluster", plan.cluster, 1);
  return cut.number("sharing", plan.deal.sharing, 0).number("long_windows", plan.long_windows, 0).text();
}

}  // namespace sgemm::split
