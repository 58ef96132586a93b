#include "tall.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../problem/buffers.h"
#include "../table/fastest.h"
#include "../problem/views.h"
#include "../models/models.h"
#include "plan.h"

namespace sgemm::split {
namespace {

constexpr int kSmallBlock = 4;  // warps
constexpr int64_t kFewPieces = 8;

// How A's rows can be read, of a problem that is not swapped.
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

// How much more of D is written where sectors of memory are written in parts.
double written_again(TallStores stores, const Problem& p) {
  switch (stores) {
    case TallStores::kQuads:
      return p.n % kSectorFloats ? 1 : 0;
    case TallStores::kPairs:
      return p.m % kSectorFloats ? 1 : 0;
    case TallStores::kTiles:
    case TallStores::kColumns:
      return 1;
    default:
      return p.d.col == 1 ? kSectorFloats - 1 : kSectorFloats / 2 - 1;
  }
}

double seconds(const TallPiece& plan, const Problem& p, const Device& device) {
  const SplitTallModel& model = models().split_tall;
  const TallTile& tile = kTallTiles[plan.tile];
  const int resident = tile.warps / plan.warps;
  const int64_t blocks = ceil_div(p.n, plan.cols) * p.batch * plan.groups;
  const int64_t waves = ceil_div(blocks, int64_t{device.sms} * resident);
  const int64_t turns = ceil_div(ceil_div(p.m, TallTile::kRows), plan.groups * plan.warps);  // of a warp
  const int64_t warps = std::min<int64_t>(ceil_div(blocks, device.sms), resident) * plan.warps;
  const int steps = tile.steps(), groups = plan.cols / TallTile::kCols;

  const bool adds = p.beta != 0 && p.c.row != 0;  // a row of biases stays in the cache
  const bool staged = plan.stores == TallStores::kTiles || plan.stores == TallStores::kColumns;
  const double of_group =
      model.group + steps * model.group_step + (staged ? model.stored : 0) + (adds ? model.added : 0);
  const double of_tile =
      model.tile + steps * (model.step + (plan.reads == TallReads::kQuads ? 0 : model.unaligned)) + groups * of_group;
  const double compute = double(waves) * (double(turns * warps) * of_tile + groups * model.last_group);
  const double fill = double(ceil_div(plan.cols / 8, plan.warps)) * (model.fill + steps * model.fill_step);
  const double moved = bytes(p) + written_again(plan.stores, p) * 4 * p.m * p.n * p.batch;
  return model.fixed + double(waves) * fill +
         std::hypot(compute * kH200.clock_ghz / device.clock_ghz,
                    moved / (model.bandwidth * device.bandwidth_gbs * 1e9));
}

TallSlices tall_slices(const Problem& p) {
  TallSlices cut = {};
  const int64_t pieces = std::max<int64_t>(1, ceil_div(p.k, TallProduct::kLargest.depth));
  cut.piece = std::max<int64_t>(1, ceil_div(ceil_div(p.k, pieces), TallTile::kStep)) * TallTile::kStep;
  int64_t of_slice = pieces;
  if (pieces > kFewPieces) of_slice = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(pieces))));
  cut.slice = of_slice * cut.piece;
  cut.count = std::max<int64_t>(1, ceil_div(p.k, cut.slice));
  cut.in_d = cut.count == 1 && (pieces == 1 || adds_up_in_d(p));
  if (!cut.in_d) cut.part = part_of(p, cut.count, static_cast<int64_t>(workspace_limit()));
  return cut;
}

// Of a piece.
template <class Visit>
void visit_plans(const Problem& problem, const Device& device, const Visit& visit) {
  TallPiece plan = {};
  plan.swapped = problem.m < problem.n;
  const Problem p = plan.swapped ? transposed(problem) : problem;
  while (kTallTiles[plan.tile].depth < p.k) ++plan.tile;
  plan.reads = reads(p);
  plan.stores = stores(plan.tile, p);
  const TallTile& tile = kTallTiles[plan.tile];
  const int64_t panels = std::max<int64_t>(1, ceil_div(p.n, tall_cols(plan.tile)));
  plan.cols =
      static_cast<int>(std::max<int64_t>(1, ceil_div(ceil_div(p.n, panels), TallTile::kCols)) * TallTile::kCols);
  // Blocks of all of an SM's warps, of which fewer split B; or small ones, for many panels.
  const int64_t all = panels * std::max<int64_t>(1, p.batch), tiles = ceil_div(p.m, TallTile::kRows);
  for (const int warps : {tile.warps, kSmallBlock}) {
    plan.warps = warps;
    plan.groups = static_cast<int>(std::clamp<int64_t>(int64_t{device.sms} * (tile.warps / warps) / all, 1,
                                                       std::max<int64_t>(1, ceil_div(tiles, warps))));
    plan.seconds = split::seconds(plan, p, device);
    visit(plan);
  }
}

// The pieces of a problem.
struct Pieces {
  TallSlices cut;
  Problem piece, last, typical;  // of k; and what choices see: D is a new tensor
  int64_t count;

  Plan plan(const TallPiece& first, const TallPiece& rest, double seconds) const {
    const size_t sums = cut.in_d ? 0 : 4 * static_cast<size_t>(cut.count * cut.part.m * cut.part.n);
    return {seconds * static_cast<double>(count), lists + sums, TallPlan{cut, first, rest}};
  }
  size_t lists;  // bytes
};

Pieces pieces_of(const Problem& p) {
  Pieces all = {tall_slices(p), p, {}, {}, 0, tall_list_bytes(p)};
  const TallSlices& cut = all.cut;
  const int64_t of_k = std::max<int64_t>(1, ceil_div(p.k, cut.piece));
  Problem& piece = all.piece;
  piece.k = piece.a.cols = piece.b.rows = std::min(p.k, cut.piece);
  all.typical = piece;
  all.typical.d = {nullptr, p.m, p.n, p.n, 1, p.m * p.n};
  if (of_k > 1) {
    all.typical.beta = 1;
    all.typical.c = {nullptr, p.m, p.n, p.n, 1, p.m * p.n};
  }
  if (!cut.in_d) {  // of one matrix after the other, to the workspace
    all.typical.batch = piece.batch = 1;
    piece.m = cut.part.m;
    piece.n = cut.part.n;
    piece.d = {nullptr, piece.m, piece.n, piece.n, 1, 0};
  }
  all.count = of_k * (cut.in_d ? 1 : p.batch);
  all.last = piece;
  all.last.k = all.last.a.cols = all.last.b.rows = p.k - (of_k - 1) * cut.piece;
  return all;
}

}  // namespace

TallPiece tall_piece(const Problem& p, const Device& device) {
  return fastest<TallPiece>([&](const auto& visit) { visit_plans(p, device, visit); });
}

Plan TallProduct::plan(const Problem& p, const Device& device) {
  const Pieces all = pieces_of(p);
  const TallPiece piece = tall_piece(all.piece, device);
  return all.plan(piece, all.last.k == all.piece.k ? piece : tall_piece(all.last, device),
                  tall_piece(all.typical, device).seconds);
}

void TallProduct::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  const Pieces all = pieces_of(p);
  std::vector<TallPiece> last, typical;
  visit_plans(all.last, device, [&](const TallPiece& piece) { last.push_back(piece); });
  visit_plans(all.typical, device, [&](const TallPiece& piece) { typical.push_back(piece); });
  size_t i = 0;
  visit_plans(all.piece, device, [&](const TallPiece& piece) {
    visit(all.plan(piece, last[i], typical[i].seconds));
    ++i;
  });
}

size_t tall_list_bytes(const Problem& p) {
  constexpr int64_t kFewestCols = tall_cols(kTallCount - 1);
  const int64_t panels = ceil_div(std::min(p.m, p.n), kFewestCols) * std::max<int64_t>(1, p.batch);
  const int64_t bytes = panels * ceil_div(std::max(p.m, p.n), TallTile::kRows) * int64_t{sizeof(TallEntry)};
  return static_cast<size_t>(ceil_div(bytes, 256) * 256);
}

}  // namespace sgemm::split
