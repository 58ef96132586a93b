#include "plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "../../gpu/clusters.h"
#include "../../problem/buffers.h"
#include "../../problem/fastest.h"
#include "seconds.h"
#include "segments.h"

namespace sgemm::split {
namespace {

constexpr int64_t kLeastPart = 2;  // steps of k
constexpr int64_t kShortestSlice = 256;
constexpr int64_t kMoreSlices = 6;
constexpr int64_t kMostTurns = 16;  // parts of tiles of few columns that a block takes in turn: at most 32

// Returns the number of blocks that share each left-over tile. More blocks mean fewer steps of k each, but more parts
// to add up. Adding a part takes about as long as a step of three products.
int parts(const RowShape& shape, const SplitPlan& plan, const Device& device) {
  if (plan.left == 0) return 1;
  const int64_t most = std::min(device.sms / int64_t{plan.left}, shape.steps(plan.slice) / kLeastPart);
  const double best = std::sqrt(shape.steps(plan.slice) * shape.products / 3.0);
  return static_cast<int>(std::min(most, static_cast<int64_t>(best + 0.5)));
}

// Returns about half of a batch: whole groups, or a part of one group.
int64_t half(int64_t batch, int64_t group) {
  const int64_t count = ceil_div(batch, 2);
  return group && batch > group ? ceil_div(count, group) * group : count;
}

// Returns the layout of the largest piece.
Layout piece_layout(const RowShape& shape, const Problem& p, const SplitPlan& plan) {
  Problem piece = p;
  piece.m = plan.m;
  piece.n = plan.n;
  piece.batch = plan.batch;
  return layout(shape, piece, plan);
}

// Calls `visit` with every plan in one piece. Precondition: `p` has one matrix if its k needs several slices
// (at_once()).
template <class Visit>
void visit_plans(const RowShape& shape, const Problem& p, const Device& device, bool packed_b, const Visit& visit) {
  const bool gram = is_gram(p) && !shape.on_the_fly && !shape.half() && !packed_b;
  const int64_t fewest = std::max<int64_t>(1, ceil_div(p.k, kMaxSlice));
  const auto predicted = [&](SplitPlan plan) {
    plan.seconds = predicted_seconds(shape, p, device, plan);
    visit(plan);
  };
  const auto consider = [&](int64_t wanted) {
    const int64_t slice = even_piece(p.k, wanted, shape.together() * kStep),
                  slices = std::max<int64_t>(1, ceil_div(p.k, slice));
    const int64_t tiles = tiles_of(shape, p, gram);
    SplitPlan plan = {p.m, p.n, p.batch, slice, slices, 1, 0, packed_b};
    if (shape.on_the_fly) {  // no blocks share a tile, whose scales differ in its parts
      if (shape.half()) predicted(plan);
      plan.splits_b = true;
      return predicted(plan);
    }
    plan.triangle = gram;
    predicted(plan);
    SplitPlan parted = plan;
    parted.left = static_cast<int>(tiles * slices % device.sms);
    parted.parts = parts(shape, parted, device);
    if (parted.parts > 1) predicted(parted);
    plan.cluster = 2;
    const bool fits = std::max<int64_t>(1, tiles * slices) <= clusters_at_once(device.sms, plan.cluster);
    if (fits && shape.steps(slice) >= 2 * plan.cluster) predicted(plan);
  };
  const int64_t all_tiles = tiles_of(shape, p, false);  // including tiles below the diagonal
  // A few more slices than needed may fill the last wave. Many more may fill a device that has few tiles.
  const int64_t most = p.batch > 1 || packed_b ? fewest : std::max(fewest, p.k / kShortestSlice);
  for (int64_t slices = fewest; slices <= std::min(most, fewest + kMoreSlices); ++slices) consider(slices);
  const auto consider_many = [&](int64_t slices) {
    if (slices > fewest + kMoreSlices && slices <= most) consider(slices);
  };
  for (int64_t slices = 2 * fewest; slices <= most && all_tiles * slices <= 2 * device.sms; slices *= 2)
    consider_many(slices);
  for (int cluster = 1; cluster <= 2 && all_tiles > 0; ++cluster)
    consider_many(clusters_at_once(device.sms, cluster) / all_tiles);
}

// The same for few columns. All tiles are shared by equally many blocks: as many as fill the device once, or several
// times, or a part of it, where parts take longer to add up than to multiply.
template <class Visit>
void visit_few_plans(const RowShape& shape, const Problem& p, const Device& device, const PackedOperands& packed,
                     const Visit& visit) {
  const int64_t fewest = std::max<int64_t>(1, ceil_div(p.k, kMaxSlice)), slice = even_piece(p.k, fewest, kStep),
                slices = std::max<int64_t>(1, ceil_div(p.k, slice));
  SplitPlan plan = {p.m, p.n, p.batch, slice, slices, 1, 0, packed.b};
  plan.packed_a = packed.a;
  const int64_t tiles = std::max<int64_t>(1, tiles_of(shape, p, false) * slices), once = device.sms / tiles;
  const int64_t most = std::min(shape.steps(slice) / kLeastPart, kMostTurns * device.sms / tiles);
  std::set<int64_t> counts = {1};
  for (const int64_t wanted : {once / 4, once / 2, once, 2 * device.sms / tiles, 3 * device.sms / tiles})
    counts.insert(std::max<int64_t>(1, std::min(wanted, most)));
  for (const int64_t parts : counts) {
    plan.parts = static_cast<int>(parts);
    plan.left = parts > 1 ? static_cast<int>(tiles) : 0;
    plan.seconds = predicted_seconds(shape, p, device, plan);
    visit(plan);
  }
}

// Halves the k of a piece, about: first by whole slices, then by the slice's k. Returns false if k can't be smaller.
bool halve_k(const RowShape& shape, SplitPlan& plan) {
  const int64_t least = shape.together() * kStep;
  if (plan.slices > 1)
    plan.slices = ceil_div(plan.slices, 2);
  else if (plan.slice > least)
    plan.slice = ceil_div(plan.slice, 2 * least) * least;
  else
    return false;
  return true;
}

// Cuts `p` into pieces that fit `limit` bytes. Each halving keeps whole tiles. k is halved last, because each piece of
// k reads and writes C again.
SplitPlan in_pieces(SplitPlan plan, const RowShape& shape, const Problem& p, size_t limit) {
  for (;;) {
    if (piece_layout(shape, p, plan).total <= limit) return plan;
    plan.left = 0;
    plan.parts = 1;
    int64_t* widest = !plan.packed_a && (plan.packed_b || plan.m > plan.n) ? &plan.m : &plan.n;
    if ((plan.packed_a || plan.packed_b) && *widest <= kTile) return plan;
    if (plan.batch > 1)
      plan.batch = half(plan.batch, std::max(p.a.batch.group, p.b.batch.group));
    else if (*widest > kTile) {
      *widest = ceil_div(*widest, 2 * kTile) * kTile;
      plan.triangle = false;
    } else if (!halve_k(shape, plan))
      return plan;  // the smallest piece there is
  }
}

// `converted`: the convert kernel splits the operand. If the product kernel does, only statistics are in memory.
PlanesLayout planes_layout(Buffers& buffers, const RowShape& shape, int64_t slice, int64_t panels,
                           bool converted = true) {
  const int64_t split = converted ? panels : 0;
  const size_t planes = buffers.take(split * shape.steps(slice) * shape.pairs * kPanelBytes);
  const size_t row_scales = buffers.take(split * kTile * sizeof(RowScale));
  const size_t row_stats = buffers.take(panels * kTile * sizeof(RowStats));
  return {planes, row_scales, row_stats, buffers.take(split * kLowerEntries)};
}

// Returns the problem that is planned at once: a single matrix if k needs several slices, which then are the batch.
Problem at_once(const Problem& p) {
  Problem one = p;
  if (p.k > kMaxSlice) one.batch = std::min<int64_t>(p.batch, 1);
  return one;
}

// Returns the plan `found` for `one`, cut into pieces, with their layout and the predicted time of all `batch`
// matrices.
SplitPlan whole(const SplitPlan& found, const RowShape& shape, const Problem& one, int64_t batch, size_t limit) {
  SplitPlan plan = in_pieces(found, shape, one, limit);
  plan.layout = piece_layout(shape, one, plan);
  if (one.batch < batch) plan.seconds *= static_cast<double>(batch);
  return plan;
}

// Returns how a batch-invariant plan cuts k: the same for every kernel of the row, every m and every batch.
SplitPlan invariant_cut(const RowShape& shape, const Problem& p, size_t limit, bool packed_b) {
  const PackedLayout of_k = packed_layout(shape, p.k, p.n);
  SplitPlan plan = {2 * kTile, 2 * kTile, 1, of_k.slice, of_k.slices, 1, 0, packed_b};
  plan.batch_invariant = true;
  // Choose pieces of k that fit with 2 kTile rows and columns, more than the smallest piece has, for any size of tile.
  RowShape largest = shape;
  largest.tile_m = largest.tile_n = kTile;
  largest.few = false;
  const Problem one = at_once(p);
  while (!packed_b && piece_layout(largest, one, plan).total > limit && halve_k(shape, plan)) continue;
  plan.segment = segment_steps(p.n, ceil_div(p.k, plan.slice), shape.steps(plan.slice));
  return plan;
}

}  // namespace

SplitPlan plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b) {
  return fastest<SplitPlan>([&](const auto& visit) { each_plan(shape, p, device, limit, packed_b, visit); });
}

void each_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b,
               const std::function<void(const SplitPlan&)>& visit) {
  const Problem one = at_once(p);
  visit_plans(shape, one, device, packed_b,
              [&](const SplitPlan& plan) { visit(whole(plan, shape, one, p.batch, limit)); });
}

void each_few_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit,
                   const PackedOperands& packed, const std::function<void(const SplitPlan&)>& visit) {
  const Problem one = at_once(p);
  visit_few_plans(shape, one, device, packed, [&](const SplitPlan& found) {
    const SplitPlan plan = whole(found, shape, one, p.batch, limit);
    if (plan.parts == found.parts) visit(plan);  // pieces have whole tiles, like those of the plan without parts
  });
}

SplitPlan invariant_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b) {
  const Problem one = at_once(p);
  SplitPlan plan = invariant_cut(shape, p, limit, packed_b);
  plan.m = p.m;
  plan.n = p.n;
  plan.batch = one.batch;
  plan.seconds = predicted_seconds(shape, one, device, plan);
  return whole(plan, shape, one, p.batch, limit);
}

std::optional<SplitPlan> invariant_few_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit,
                                            bool packed_a) {
  const Problem one = at_once(p);
  SplitPlan plan = invariant_cut(shape, transposed(p), limit, packed_a);
  if (plan.k() < p.k) return std::nullopt;
  plan.m = p.m;
  plan.n = p.n;
  plan.batch = one.batch;
  plan.packed_b = false;
  plan.packed_a = packed_a;
  plan.few_rows = true;
  const int64_t tiles = tiles_of(shape, one, false) * plan.slices,
                parts = std::max<int64_t>(1, ceil_div(shape.steps(plan.slice), plan.segment));
  if (tiles > 0 && parts > 1) {
    if (tiles * parts > kMostTurns * device.sms) return std::nullopt;
    plan.left = static_cast<int>(tiles);
    plan.parts = static_cast<int>(parts);
  }
  plan.layout = piece_layout(shape, one, plan);
  if (plan.layout.total > limit) return std::nullopt;
  plan.seconds = predicted_seconds(shape, one, device, plan);
  if (one.batch < p.batch) plan.seconds *= static_cast<double>(p.batch);
  return plan;
}

PackedLayout packed_layout(const RowShape& shape, int64_t k, int64_t n) {
  const int64_t fewest = std::max<int64_t>(1, ceil_div(k, kMaxSlice)), slice = even_piece(k, fewest, kStep);
  const int64_t slices = std::max<int64_t>(1, ceil_div(k, slice));
  Buffers buffers;
  const PlanesLayout b = planes_layout(buffers, shape, slice, slices * ceil_div(n, kTile));
  return {slice, slices, b, buffers.total};
}

Layout layout(const RowShape& shape, const Problem& piece, const SplitPlan& plan) {
  const int64_t batch = piece.batch * plan.slices, tiles = tiles_of(shape, piece, plan.triangle) * plan.slices;
  const auto panels = [&](const ConstMatrix& x, int64_t size) {
    return split_matrices(x, batch, plan) * ceil_div(size, kTile);
  };
  const bool has_a = !plan.packed_a, has_b = !plan.packed_b && !plan.triangle;
  Layout l = {};
  Buffers buffers;
  l.a = planes_layout(buffers, shape, plan.slice, has_a ? panels(piece.a, piece.m) : 0, !shape.on_the_fly);
  l.b = planes_layout(buffers, shape, plan.slice, has_b ? panels(piece.b, piece.n) : 0, !plan.splits_b);
  l.refused = buffers.take(tiles * kTileCluster * 8 * 4);
  l.masks = buffers.take(tiles * (shape.tile_n / 32) * 256 * 2);
  l.tile_scales = buffers.take(tiles * 2 * kTile * 4);
  const int part_cols = shape.few ? narrow(piece) : shape.tile_n;
  l.part_sums = buffers.take(int64_t{plan.left} * plan.parts * shape.tile_m * part_cols * 4);
  l.arrived = buffers.take(plan.left * 4);
  l.partials = buffers.take(plan.slices > 1 ? piece.m * piece.n * plan.slices * 4 : 0);
  l.total = buffers.total;
  return l;
}

size_t pieces_at(const SplitPlan& plan) { return (plan.layout.total + 15) / 16 * 16; }

size_t workspace(const Problem& p, const SplitPlan& plan) {
  const Pieces cut = plan.pieces(p);
  return cut.in_d ? plan.layout.total : pieces_at(plan) + cut.sum_bytes();
}

}  // namespace sgemm::split
