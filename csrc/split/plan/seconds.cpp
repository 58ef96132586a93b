#include "seconds.h"

#include <algorithm>
#include <cmath>

#include "../../gpu/clusters.h"
#include "../../models/models.h"
#include "../../problem/elements.h"

namespace sgemm::split {
namespace {

// Returns true if neighbours can be read four at a time.
bool quads(const ConstMatrix& x, ElementType elements = ElementType::kFloat32) {
  return has_quads(x.col == 1 ? x : transposed(x), elements);
}

// 16-bit products per step. An operand of 16 bits saves one, because its lower plane is zero. A second such operand
// would save another product, but a step of one product takes more than a third of the time of three.
int products(const RowShape& shape, const Problem& p) {
  return shape.products - (p.elements_a != ElementType::kFloat32 || p.elements_b != ElementType::kFloat32);
}

// Time of a tile of the shape, relative to a tile of 128 x 128.
double tile_share(const RowShape& shape) { return shape.half() ? models().split.half_step : 1; }

// The same for a kernel that splits both operands.
double both_share(const RowShape& shape) { return shape.half() ? models().split_streamed.both_half : 1; }

// Seconds of a tile's step of k.
double step_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  if (shape.on_the_fly) {
    const SplitStreamedModel& model = models().split_streamed;
    const double step = plan.splits_b ? both_share(shape) * model.both_step : model.step;
    // Where four neighbours can't be read at once, elements are copied one by one, while earlier steps are computed.
    const int rows = (quads(p.a) ? 0 : shape.tile_m) + (plan.splits_b && !quads(p.b) ? shape.tile_n : 0);
    return std::max(step / device.tensor_rate, rows * (plan.splits_b ? model.both_copied_row : model.copied_row));
  }
  return products(shape, p) * models().split.step / device.tensor_rate * tile_share(shape);
}

// Bytes of the planes of `size` rows of A, or columns of B.
double planes(const RowShape& shape, const SplitPlan& plan, int64_t size) {
  return ceil_div(size, kTile) * kTile * 4.0 * plan.slices * shape.steps(plan.slice) * kStep * shape.pairs;
}

// Bytes that the convert kernel moves: it reads an operand of `size` rows, or columns, and writes its planes.
double convert_bytes(const RowShape& shape, const Problem& p, const SplitPlan& plan, const ConstMatrix& x, int64_t size,
                     ElementType elements = ElementType::kFloat32) {
  return matrices(x, p.batch) * (double(element_bytes(elements)) * size * p.k + planes(shape, plan, size));
}

// Seconds in which the convert kernel splits an operand of `size` rows, or columns.
double convert_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan,
                       const ConstMatrix& x, ElementType elements, int64_t size, bool along_k) {
  const SplitModel& model = models().split;
  return convert_bytes(shape, p, plan, x, size, elements) / (model.convert * device.bandwidth_gbs * 1e9) *
         (along_k ? 1 : model.convert_across) * (quads(x, elements) ? 1 : model.convert_unaligned);
}
double convert_a_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  return convert_seconds(shape, p, device, plan, p.a, p.elements_a, p.m, runs_along_k(p.a.col, p.a.row));
}
double convert_b_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  return convert_seconds(shape, p, device, plan, p.b, p.elements_b, p.n, runs_along_k(p.b.row, p.b.col));
}

// Predicted seconds of a product. `waves`: waves of tiles, `ends` included. `ends`: a block's prologue and epilogue,
// which nothing overlaps. `stores`: writing D, or its slices. `last`: the last part of the stores, which no product
// hides. `sum`: the sum of slices.
struct Product {
  double waves, ends, stores, last, sum;
};

// Arguments in seconds. `tile`: begins and ends a tile. `adding`: adds up a cluster's parts. `sharing`: adds up those
// of a tile that is left over. `summing`: launches the sum of slices, which moves each slice's sums `moves` times.
Product product(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan, double tile,
                double adding, double sharing, double summing, double moves) {
  const int64_t tiles = tiles_of(shape, p, plan.triangle) * plan.slices;
  const double step = step_seconds(shape, p, device, plan);
  // Seconds of a wave of tiles, each shared by `blocks` blocks.
  const auto wave = [&](int64_t blocks) { return ceil_div(shape.steps(plan.slice), blocks) * step + tile; };
  Product all = {};
  all.waves = ceil_div(tiles - plan.left, clusters_at_once(device.sms, plan.cluster)) * (wave(plan.cluster) + adding);
  all.ends = tile + adding;
  if (plan.left) {
    all.waves += wave(plan.parts) + sharing;
    all.ends = tile + sharing;
  }

  const double bandwidth = device.bandwidth_gbs * 1e9;
  const double result = double(p.m) * p.n * p.batch * 4 / bandwidth;
  all.stores = (plan.triangle ? result / 2 : result) * plan.slices;
  all.last = std::min(all.stores, 4.0 * shape.tile_m * shape.tile_n * device.sms / bandwidth);
  if (plan.slices > 1) all.sum = summing + moves * all.stores;
  if (is_gram(p) && !plan.batch_invariant) all.sum += models().split.sum + result;  // the mirror
  return all;
}

double seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  const SplitModel& model = models().split;
  const double bandwidth = device.bandwidth_gbs * 1e9;
  double converts = convert_a_seconds(shape, p, device, plan);
  if (!plan.packed_b && !plan.triangle) converts += convert_b_seconds(shape, p, device, plan);
  Product all = product(shape, p, device, plan, model.tile * tile_share(shape), (plan.cluster - 1) * model.cluster,
                        model.share + plan.parts * model.part, model.sum, model.sum_moves);
  if (plan.segment) {  // adding a segment to a tile's total takes about as long as adding a part to it
    const int64_t waves = ceil_div(tiles_of(shape, p, plan.triangle) * plan.slices, device.sms);
    all.waves += waves * (ceil_div(shape.steps(plan.slice), plan.segment) - 1) * model.part * tile_share(shape);
  }
  // Packed planes come from memory. Planes that the convert kernel has just written are in the L2 cache.
  if (plan.packed_b) all.waves = std::hypot(all.waves, planes(shape, plan, p.n) / (model.convert * bandwidth));
  return model.launch + converts + std::hypot(all.waves, all.stores) + all.last + all.sum;
}

double onthefly_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  const SplitStreamedModel& model = models().split_streamed;
  const double bandwidth = device.bandwidth_gbs * 1e9;
  const double tile = plan.splits_b ? both_share(shape) * model.both_tile : model.tile;
  // The smaller the share of the L2 cache that the slices' sums take, the faster they move.
  const double l2_share = std::min(1.0, double(p.m) * p.n * p.batch * plan.slices * 4 / (device.l2_mb * 1e6));
  const Product all = product(shape, p, device, plan, tile, 0, 0, model.other_launch, model.sum_moves * l2_share);
  const double raw = plan.splits_b ? operand_bytes(p) : 4.0 * p.m * p.k * matrices(p.a, p.batch);
  const double read = raw / (model.bandwidth * bandwidth);
  const double convert =
      plan.splits_b ? 0 : model.other_launch + convert_bytes(shape, p, plan, p.b, p.n) / (model.convert * bandwidth);
  return model.launch + convert + all.ends + overlapped(all.waves - all.ends, read + all.stores) + all.last + all.sum;
}

// A product of few columns: the time of the busiest SM's parts of tiles, or that of reading A's planes, if these were
// written long ago.
double few_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  const SplitFewModel& model = models().split_few;
  const double bandwidth = device.bandwidth_gbs * 1e9;
  const int cols = narrow(p);
  const double step = products(shape, p) / 3.0 * (model.step + cols * model.step_column) / device.tensor_rate;
  const int64_t parts = tiles_of(shape, p, false) * plan.slices * plan.parts;
  const double turns = ceil_div(std::max<int64_t>(1, parts), device.sms);
  const double waves = turns * (ceil_div(shape.steps(plan.slice), plan.parts) * step + model.tile);
  double seconds = model.launch;
  if (!plan.packed_a) seconds += convert_a_seconds(shape, p, device, plan);
  if (!plan.packed_b) seconds += 8.0 * p.n * p.k * matrices(p.b, p.batch) / (model.convert * bandwidth);
  seconds += overlapped(waves, plan.packed_a ? planes(shape, plan, p.m) / (model.bandwidth * bandwidth) : 0);
  if (plan.parts > 1) seconds += turns * model.share + plan.parts * (model.part + cols * model.part_column);
  const double stores = 4.0 * p.m * p.n * p.batch / bandwidth;
  if (plan.slices > 1) seconds += models().split.sum + models().split.sum_moves * stores * plan.slices;
  return seconds + stores + (is_gram(p) ? models().split.sum + stores : 0);
}

}  // namespace

int64_t tiles_of(const RowShape& shape, const Problem& p, bool triangle) {
  if (triangle) return upper_tiles(ceil_div(p.m, kTile)) * p.batch;
  return ceil_div(p.m, shape.tile_m) * ceil_div(p.n, shape.tile_n) * p.batch;
}

double predicted_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan) {
  if (shape.few) return few_seconds(shape, p, device, plan);
  return shape.on_the_fly ? onthefly_seconds(shape, p, device, plan) : seconds(shape, p, device, plan);
}

}  // namespace sgemm::split
