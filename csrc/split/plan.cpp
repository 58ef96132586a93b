#include "plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "../common/buffers.h"
#include "../common/clusters.h"
#include "../common/fastest.h"
#include "../common/views.h"
#include "split.h"

namespace sgemm::split {
namespace {

// Measured on an H200, in seconds.
struct Costs {
  double launch;                // of pass and product, or of the fused kernel, when there is nothing to do
  double tile, short_tile;      // to fill the pipeline, and to store; more at most, where few steps follow each other
  double cluster, more;         // to add up the parts of a cluster of two; each further block
  double sum, sum_moves;        // to add up slices of k: one launch more, and how many times their sums are moved
  double half_step, half_rest;  // what a tile of half the size takes of a whole one's: of its steps, and of the rest
};
constexpr Costs kProductCosts = {1.92e-6, 0.65e-6, 1.9e-6, 1.1e-6, 1.1e-6, 2.8e-6, 1.6, 0.68, 0.8};
constexpr Costs kFusedCosts = {2.4e-6, 3.0e-6, 0, 2.2e-6, 0, 3.8e-6, 2.4, 0.79, 0.71};
constexpr double kFewSteps = 23;
// The tensor cores take 256 cycles for a 16-bit product of a tile and a step; their clock falls under load. A fused
// kernel takes longer to split a stage than for its products.
constexpr double kCyclesOfStep = 256, kTensorClock = 1.51e9;
constexpr double kFusedStepSeconds = 1.11e-6;
// To share tiles that are left over, and for each of the blocks that share one.
constexpr double kSharingSeconds = 3.8e-6, kPartSeconds = 0.5e-6;
constexpr int64_t kLeastPart = 2;       // steps of k
constexpr double kPassBandwidth = 0.8;  // of a copy's
// Elements that are copied one by one; of an operand that doesn't lie along k it takes longer to begin with.
constexpr double kFusedUnaligned = 2.4, kPassUnaligned = 1.25, kScatteredStripsSeconds = 0.35e-6;
// For an operand that lies along k, whose lines may be short, and for one that doesn't, in few slices and in many; and
// to begin with, if there is such a one.
constexpr double kPassLine = 20, kPassStrips = 1.1, kPassLongStrips = 1.4, kStripsSeconds = 0.25e-6;
constexpr int64_t kFewSlices = 4;
constexpr int64_t kShortestLine = 16;
constexpr double kPartialSectors = 2.7;  // to store rows that don't begin at multiples of 32 bytes
constexpr int64_t kShortestSlice = 256;
constexpr int64_t kMoreSlices = 6;

int64_t steps(int64_t k) { return std::max<int64_t>(1, ceil_div(k, kStep)); }

// Whether neighbours can be read four at a time.
bool quads(const ConstMatrix& x) { return has_quads(x.col == 1 ? x : transposed(x)); }

int64_t tiles_of(const Shape& shape, const Problem& p) {
  return ceil_div(p.m, shape.tile_m) * ceil_div(p.n, shape.tile_n) * p.batch;
}

const Costs& costs(const Shape& shape) { return shape.fused ? kFusedCosts : kProductCosts; }

// The time of a step of k of a tile.
double step_seconds(const Shape& shape, const Problem& p) {
  const double whole = shape.fused ? kFusedStepSeconds * (quads(p.a) && quads(p.b) ? 1 : kFusedUnaligned)
                                   : shape.products * kCyclesOfStep / kTensorClock;
  return whole * (shape.half() ? costs(shape).half_step : 1);
}

// How many blocks share each of the tiles that are left over: fewer steps of k each, but more parts to add up.
int parts(const Shape& shape, const Problem& p, const SplitPlan& plan, const Device& device) {
  if (plan.left == 0) return 1;
  const double all = steps(plan.slice) * step_seconds(shape, p);
  const int64_t most = std::min(device.sms / int64_t{plan.left}, steps(plan.slice) / kLeastPart);
  return static_cast<int>(std::min(most, static_cast<int64_t>(std::sqrt(all / kPartSeconds) + 0.5)));
}

// Bytes of the planes of so many rows of A, or columns of B.
double planes(const Shape& shape, const SplitPlan& plan, int64_t size) {
  return ceil_div(size, kTile) * kTile * 4.0 * plan.slices * steps(plan.slice) * kStep * shape.pairs;
}

// It reads operands and writes planes.
double pass_seconds(const Shape& shape, const Problem& p, const SplitPlan& plan, double bandwidth) {
  const double of_strips = plan.slices > kFewSlices ? kPassLongStrips : kPassStrips;
  const auto split = [&](const ConstMatrix& x, int64_t size, bool along_k) {
    const double bytes = matrices(x, p.batch) * (4.0 * size * p.k + planes(shape, plan, size));
    const double lines = along_k ? 1 + kPassLine / std::max(p.k, kShortestLine) : of_strips;
    return bytes / (kPassBandwidth * bandwidth) * lines * (quads(x) ? 1 : kPassUnaligned);
  };
  const bool a_along_k = runs_along_k(p.a.col, p.a.row), b_along_k = runs_along_k(p.b.row, p.b.col);
  const bool split_b = !plan.packed_b, strips_a = !a_along_k, strips_b = split_b && !b_along_k;
  const bool scattered = (strips_a && !quads(p.a)) || (strips_b && !quads(p.b));
  return split(p.a, p.m, a_along_k) + (split_b ? split(p.b, p.n, b_along_k) : 0) +
         (strips_a || strips_b ? kStripsSeconds : 0) + (scattered ? kScatteredStripsSeconds : 0);
}

double seconds(const Shape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  const Costs& cost = costs(shape);
  const int64_t slice = plan.slice, slices = plan.slices, tiles = tiles_of(shape, p) * slices;
  const int cluster = plan.cluster;
  const double step = step_seconds(shape, p), rest = shape.half() ? cost.half_rest : 1;
  const double tile = cost.tile + cost.short_tile * std::max(0.0, 1 - steps(slice) / kFewSteps);
  const double adding = cluster > 1 ? cost.cluster + (cluster - 2) * cost.more : 0;
  // The time of a wave of tiles, each shared by `blocks`.
  const auto wave = [&](int64_t blocks) { return ceil_div(steps(slice), blocks) * step + tile * rest; };
  double product = ceil_div(tiles - plan.left, clusters_at_once(device.sms, cluster)) * (wave(cluster) + adding * rest);
  if (plan.left) product += wave(plan.parts) + kSharingSeconds + plan.parts * kPartSeconds;

  const double bandwidth = device.bandwidth_gbs * 1e9;
  // Those that a pass has just written are in the cache.
  if (plan.packed_b) product = std::hypot(product, planes(shape, plan, p.n) / (kPassBandwidth * bandwidth));
  const double result = double(p.m) * p.n * p.batch * 4 / bandwidth, store = p.n % 8 == 0 ? 1 : kPartialSectors;
  const double stores = result * (slices > 1 ? slices : store);  // sums of slices lie without gaps
  // The last tiles' stores, which no product hides.
  const double last = std::min(stores, 4.0 * shape.tile_m * shape.tile_n * device.sms / bandwidth * store);
  const double sum = slices > 1 ? cost.sum + cost.sum_moves * stores + result * store : 0;
  const double all = shape.fused ? std::max(product, operand_bytes(p) / (kPassBandwidth * bandwidth) + stores)
                                 : pass_seconds(shape, p, plan, bandwidth) + std::max(product, stores);
  return cost.launch + all + last + sum;
}

// About half of a batch: whole groups, or part of one.
int64_t half(int64_t batch, int64_t group) {
  const int64_t count = ceil_div(batch, 2);
  return group && batch > group ? ceil_div(count, group) * group : count;
}

size_t piece_bytes(const Shape& shape, const Problem& p, const SplitPlan& plan) {
  Problem piece = p;
  piece.m = plan.m;
  piece.n = plan.n;
  piece.batch = plan.batch;
  return layout(shape, piece, plan).total;
}

// Calls `visit` with every plan, in one piece. Of a batch whose slices take its place, those of one matrix.
template <class Visit>
void visit_plans(const Shape& shape, const Problem& p, const Device& device, bool packed_b, const Visit& visit) {
  const int64_t tiles = tiles_of(shape, p);
  const int64_t fewest = std::max<int64_t>(1, ceil_div(p.k, kMaxSlice));
  const auto predicted = [&](SplitPlan plan) {
    plan.seconds = seconds(shape, p, device, plan);
    visit(plan);
  };
  const auto consider = [&](int64_t wanted) {
    const int64_t slice = steps(ceil_div(p.k, wanted)) * kStep, slices = std::max<int64_t>(1, ceil_div(p.k, slice));
    for (int cluster = 1; cluster <= 4; cluster *= 2) {
      const bool fits = std::max<int64_t>(1, tiles * slices) <= clusters_at_once(device.sms, cluster);
      if (cluster > 1 && (!fits || steps(slice) < 2 * cluster)) continue;
      SplitPlan plan = {p.m, p.n, p.batch, slice, slices, cluster, 0, packed_b};
      predicted(plan);
      if (cluster > 1 || shape.fused) continue;
      plan.left = static_cast<int>(tiles * slices % device.sms);
      plan.parts = parts(shape, p, plan, device);
      if (plan.parts > 1) predicted(plan);
    }
  };
  // A few more slices than needed may fill the last wave; many, a device that has few tiles.
  const int64_t most = p.batch > 1 || packed_b ? fewest : std::max(fewest, p.k / kShortestSlice);
  for (int64_t slices = fewest; slices <= std::min(most, fewest + kMoreSlices); ++slices) consider(slices);
  const auto consider_many = [&](int64_t slices) {
    if (slices > fewest + kMoreSlices && slices <= most) consider(slices);
  };
  for (int64_t slices = 2 * fewest; slices <= most && tiles * slices <= 2 * device.sms; slices *= 2)
    consider_many(slices);
  for (int cluster = 1; cluster <= 4 && tiles > 0; cluster *= 2)
    consider_many(clusters_at_once(device.sms, cluster) / tiles);
}

// In pieces of `p` that fit. Each halving keeps whole tiles; k comes last, because its pieces read and write C again.
SplitPlan in_pieces(SplitPlan plan, const Shape& shape, const Problem& p, size_t limit) {
  for (;;) {
    if (piece_bytes(shape, p, plan) <= limit) return plan;
    plan.left = 0;
    plan.parts = 1;
    int64_t* widest = plan.packed_b || plan.m > plan.n ? &plan.m : &plan.n;
    if (plan.packed_b && plan.m <= kTile) return plan;
    if (plan.batch > 1)
      plan.batch = half(plan.batch, std::max(p.a.batch.group, p.b.batch.group));
    else if (*widest > kTile)
      *widest = ceil_div(*widest, 2 * kTile) * kTile;
    else if (plan.slices > 1)
      plan.slices = ceil_div(plan.slices, 2);
    else if (plan.slice > kStep)
      plan.slice = ceil_div(plan.slice, 2 * kStep) * kStep;
    else
      return plan;  // the least that works
  }
}

// One matrix after the other, where its slices take the place of a batch.
Problem at_once(const Problem& p) {
  Problem one = p;
  if (p.k > kMaxSlice) one.batch = std::min<int64_t>(p.batch, 1);
  return one;
}

// The plan found for `one` matrix, or for the whole batch at once: in pieces, and for `batch` of them.
SplitPlan whole(const SplitPlan& found, const Shape& shape, const Problem& one, int64_t batch, size_t limit) {
  SplitPlan plan = in_pieces(found, shape, one, limit);
  if (one.batch < batch) plan.seconds *= static_cast<double>(batch);
  return plan;
}

}  // namespace

SplitPlan plan(const Shape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b) {
  const Problem one = at_once(p);
  const auto each = [&](const auto& visit) { visit_plans(shape, one, device, packed_b, visit); };
  return whole(fastest<SplitPlan>(each), shape, one, p.batch, limit);
}

void each_plan(const Shape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b,
               const std::function<void(const SplitPlan&)>& visit) {
  const Problem one = at_once(p);
  visit_plans(shape, one, device, packed_b,
              [&](const SplitPlan& found) { visit(whole(found, shape, one, p.batch, limit)); });
}

PackedLayout packed_layout(const Shape& shape, int64_t k, int64_t n) {
  const int64_t fewest = std::max<int64_t>(1, ceil_div(k, kMaxSlice)), slice = steps(ceil_div(k, fewest)) * kStep;
  const int64_t slices = std::max<int64_t>(1, ceil_div(k, slice)), panels = slices * ceil_div(n, kTile);
  const size_t planes = panels * steps(slice) * shape.pairs * kPanelBytes;
  const size_t words = panels * kTile * sizeof(uint32_t);
  return {slice, slices, planes, planes + words, planes + 2 * words};
}

Layout layout(const Shape& shape, const Problem& piece, const SplitPlan& plan) {
  const int64_t batch = piece.batch * plan.slices, tiles = tiles_of(shape, piece) * plan.slices;
  const int64_t panel = steps(plan.slice) * shape.pairs * kPanelBytes;
  const auto count = [&](const ConstMatrix& x) { return split_matrices(x, batch, plan); };
  Layout l = {};
  Buffers buffers;
  const int64_t panels_a = shape.fused ? 0 : count(piece.a) * ceil_div(piece.m, kTile);
  const int64_t panels_b = shape.fused || plan.packed_b ? 0 : count(piece.b) * ceil_div(piece.n, kTile);
  l.planes_a = buffers.take(panels_a * panel);
  l.planes_b = buffers.take(panels_b * panel);
  l.words_a = buffers.take(panels_a * kTile * 4);
  l.words_b = buffers.take(panels_b * kTile * 4);
  l.guards_a = buffers.take(panels_a * kTile * 4);
  l.guards_b = buffers.take(panels_b * kTile * 4);
  l.marks = buffers.take(tiles * 4 * 8 * 4);
  l.masks = buffers.take(tiles * 4 * 256 * 2);
  l.tile_words = buffers.take(tiles * 2 * kTile * 4);
  l.part_sums = buffers.take(int64_t{plan.left} * plan.parts * shape.tile_m * shape.tile_n * 4);
  l.arrived = buffers.take(plan.left * 4);
  l.partials = buffers.take(plan.slices > 1 ? piece.m * piece.n * plan.slices * 4 : 0);
  l.total = buffers.total;
  return l;
}

size_t pieces_at(const Shape& shape, const Problem& p, const SplitPlan& plan) {
  return (piece_bytes(shape, p, plan) + 15) / 16 * 16;
}

size_t workspace(const Shape& shape, const Problem& p, const SplitPlan& plan) {
  if (plan.adds_up_in_d(p)) return piece_bytes(shape, p, plan);
  return pieces_at(shape, p, plan) + 4 * plan.m * plan.n;
}

size_t plane_bytes(int64_t k, int64_t n) { return packed_layout(SplitProduct<Fp16x3>::shape(0), k, n).total; }

}  // namespace sgemm::split
