#include "tall.h"

#include <algorithm>
#include <cmath>

#include "../../problem/buffers.h"
#include "../../problem/cut.h"
#include "../../problem/fastest.h"
#include "../../models/models.h"
#include "../plan/plan.h"

namespace sgemm::split {
namespace {

constexpr int kSmallBlock = 4;  // warps
constexpr int64_t kFewPieces = 8;

// Returns how A's rows can be read. Precondition: p is transposed already if the plan swaps operands.
TallReads reads(const Problem& p) {
  if (has_quads(p.a)) return TallReads::kQuads;
  return has_groups<2>(transposed(p.a)) ? TallReads::kPairs : TallReads::kSingles;
}

TallStores stores(int tile, const Problem& p) {
  if (has_quads(p.d) && p.n % kSectorFloats == 0) return TallStores::kQuads;
  if (has_groups<2>(transposed(p.d))) return TallStores::kPairs;
  if (p.n <= tall_cols(tile)) {
    const int cols = static_cast<int>(ceil_div(p.n, TallTile::kCols) * TallTile::kCols);
    if (tall_panel_bytes(tile, cols) + kTallTiles[tile].warps * tall_staged_bytes(cols) <= kTallMostBytes) {
      if (p.d.col == 1 && p.d.row == p.n) return TallStores::kTiles;
      if (p.d.row == 1) return TallStores::kColumns;
    }
  }
  return has_quads(p.d) ? TallStores::kQuads : TallStores::kSingles;
}

// Returns how much is written beyond D, as a multiple of D, where memory sectors are written in parts.
double written_again(TallStores stores, const Problem& p) {
  if (stores == TallStores::kQuads) return p.n % kSectorFloats ? 1 : 0;
  if (stores == TallStores::kPairs) return p.m % kSectorFloats ? 1 : 0;
  if (is_staged(stores)) return 1;
  return p.d.col == 1 ? kSectorFloats - 1 : kSectorFloats / 2 - 1;
}

double seconds(const TallPiece& plan, const Problem& p, const Device& device) {
  const SplitTallModel& model = models().split_tall;
  const TallTile& tile = kTallTiles[plan.tile];
  const int resident = tile.warps / plan.warps;
  const int64_t blocks = ceil_div(p.n, plan.cols) * p.batch * plan.groups;
  const int64_t waves = ceil_div(blocks, int64_t{device.sms} * resident);
  const int64_t turns = ceil_div(ceil_div(p.m, TallTile::kRows), plan.groups * plan.warps);  // tiles per warp
  const int64_t warps = std::min<int64_t>(ceil_div(blocks, device.sms), resident) * plan.warps;
  const int steps = tile.steps(), groups = plan.cols / TallTile::kCols;

  // A row of biases stays in the cache. The choice cache's key knows only whether the given C's rows differ.
  const bool adds = p.beta != 0 && (plan.swapped ? p.c.col : p.c.row) != 0;
  const double of_group =
      model.group + steps * model.group_step + (is_staged(plan.stores) ? model.stored : 0) + (adds ? model.added : 0);
  const double of_tile =
      model.tile + steps * (model.step + (plan.reads == TallReads::kQuads ? 0 : model.unaligned)) + groups * of_group;
  const double compute = double(waves) * (double(turns * warps) * of_tile + groups * model.last_group);
  const double fill = double(ceil_div(plan.cols / 8, plan.warps)) * (model.fill + steps * model.fill_step);
  const double moved = bytes(p) + written_again(plan.stores, p) * 4 * p.m * p.n * p.batch;
  return model.fixed + double(waves) * fill +
         std::hypot(compute * kH200.clock_ghz / (device.clock_ghz * device.tensor_rate),
                    moved / (model.bandwidth * device.bandwidth_gbs * 1e9));
}

// Cuts k into pieces no deeper than a tile; many pieces are grouped in slices.
Pieces pieces_of(const Problem& p) {
  const int64_t count = std::max<int64_t>(1, ceil_div(p.k, TallProduct::kLargest.depth));
  const int64_t depth = even_piece(p.k, count, TallTile::kStep);
  int64_t of_slice = count;
  if (count > kFewPieces) of_slice = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  return pieces_of_k(p, depth, of_slice * depth, static_cast<int64_t>(workspace_limit()));
}

// Plans a piece in blocks of all of an SM's warps, so that fewer blocks split B; or in small blocks, for many panels.
TallPiece in_blocks(bool small, const Problem& problem, const Device& device) {
  TallPiece plan = {};
  plan.swapped = problem.m < problem.n;
  const Problem p = plan.swapped ? transposed(problem) : problem;
  while (kTallTiles[plan.tile].depth < p.k) ++plan.tile;
  plan.reads = reads(p);
  plan.stores = stores(plan.tile, p);
  const int warps = kTallTiles[plan.tile].warps;
  plan.warps = small ? kSmallBlock : warps;
  const int64_t panels = std::max<int64_t>(1, ceil_div(p.n, tall_cols(plan.tile)));
  plan.cols = static_cast<int>(even_piece(p.n, panels, TallTile::kCols));
  const int64_t all = panels * std::max<int64_t>(1, p.batch), tiles = ceil_div(p.m, TallTile::kRows);
  plan.groups = static_cast<int>(std::clamp<int64_t>(int64_t{device.sms} * (warps / plan.warps) / all, 1,
                                                     std::max<int64_t>(1, ceil_div(tiles, plan.warps))));
  plan.seconds = seconds(plan, p, device);
  return plan;
}

// Returns the plan of a problem whose pieces `find` plans.
template <class Find>
Plan planned(const Problem& p, const Find& find) {
  const Pieces cut = pieces_of(p);
  const Problem first = cut.first(p), last = cut.last(p);
  Problem whole = first;  // one matrix, or the whole batch
  whole.m = p.m;
  whole.n = p.n;
  const int64_t of_k = cut.of_k(p);
  const TallPiece piece = find(first);
  const TallPiece judged = of_k == 1 && is_typical(p) ? piece : find(typical(whole, of_k > 1));
  return {judged.seconds * static_cast<double>(of_k * (cut.in_d ? 1 : p.batch)), tall_list_bytes(p) + cut.sum_bytes(),
          TallPlan{cut, piece, last.k == first.k ? piece : find(last)}};
}

}  // namespace

TallPiece tall_piece(const Problem& p, const Device& device) {
  return fastest<TallPiece>([&](const auto& visit) {
    for (const bool small : {false, true}) visit(in_blocks(small, p, device));
  });
}

Plan TallProduct::plan(const Problem& p, const Device& device) {
  return planned(p, [&](const Problem& piece) { return tall_piece(piece, device); });
}

void TallProduct::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  for (const bool small : {false, true})
    visit(planned(p, [&](const Problem& piece) { return in_blocks(small, piece, device); }));
}

std::string TallProduct::cut(const Plan& plan) {
  const TallPiece piece = plan.own<TallPlan>().piece;
  return Cut().number("warps", piece.warps, 0).number("swapped", piece.swapped, 0).text();
}

size_t tall_list_bytes(const Problem& p) {
  constexpr int64_t kFewestCols = tall_cols(kTallCount - 1);
  const int64_t panels = ceil_div(std::min(p.m, p.n), kFewestCols) * std::max<int64_t>(1, p.batch);
  const int64_t bytes = panels * ceil_div(std::max(p.m, p.n), TallTile::kRows) * int64_t{sizeof(TallEntry)};
  return static_cast<size_t>(ceil_div(bytes, 256) * 256);
}

}  // namespace sgemm::split
