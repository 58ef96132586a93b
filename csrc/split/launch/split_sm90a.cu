// Launches a split product: in turn for every piece, the convert kernel, the product and the sum of slices.
#include "../rows.h"

#include <initializer_list>

#include "../../epilogue/mirror.cuh"
#include "../../epilogue/split_k_reduction.cuh"
#include "../format/row_scale.cuh"
#include "launches.h"

namespace sgemm::split {
namespace {

constexpr int kGroup = 8;  // rows of tiles walked together: 8 to 12 are fastest at 4096 and 8192

// `tile`: the operand's rows per tile.
Operand operand(const float* data, ElementType elements, int64_t size, int64_t stride, int64_t k_stride,
                const BatchStride& strides, int64_t count, int64_t depth, int tile) {
  Operand x = {};
  x.data = data;
  x.elements = elements;
  x.size = size;
  x.stride = stride;
  x.k_stride = k_stride;
  x.batch = strides;
  x.count = count;
  x.tiles = static_cast<int>(ceil_div(size, tile));
  x.panels = static_cast<int>(ceil_div(size, kTile));
  x.along_k = runs_along_k(k_stride, stride);
  x.vector = has_quads(x.lines(depth), elements);
  return x;
}

// Returns a piece's job, with its buffers in the workspace. `p.k`: k of all slices of the piece. `p.d`, `p.c`: D and C,
// not the slices' partial sums.
Job make_job(const Shape& shape, const Problem& p, const SplitPlan& plan, char* workspace) {
  const Layout& at = plan.layout;
  Job job = {};
  job.p = p;
  job.k_all = p.k;
  if (plan.slices > 1) {
    job.p = product_of_slices(p, reinterpret_cast<float*>(workspace + at.partials));
    job.k_slice = plan.slice;
    job.p.k = plan.slice;
    job.p.batch = ceil_div(p.k, plan.slice);
    job.p.a.batch = plan.slice * p.a.col;
    job.p.b.batch = plan.slice * p.b.row;
    if (store_mode(p) == StoreMode::kColMajor) {  // partial sums have d's layout
      job.p.d.row = 1;
      job.p.d.col = p.m;
    }
  }
  const Problem& q = job.p;
  const auto count = [&](const ConstMatrix& x) { return split_matrices(x, q.batch, plan); };
  job.a = operand(q.a.data, q.elements_a, q.m, q.a.row, q.a.col, q.a.batch, count(q.a), p.k, shape.tile_m);
  job.b = operand(q.b.data, q.elements_b, q.n, q.b.col, q.b.row, q.b.batch, count(q.b), p.k, shape.tile_n);
  const auto place = [](Operand& x, char* from, size_t planes, size_t row_scales, size_t row_stats, size_t lower) {
    x.planes = from + planes;
    x.row_scales = reinterpret_cast<uint32_t*>(from + row_scales);
    x.row_stats = reinterpret_cast<uint32_t*>(from + row_stats);
    x.lower = reinterpret_cast<bool*>(from + lower);
  };
  if (!shape.on_the_fly) place(job.a, workspace, at.planes_a, at.scales_a, at.stats_a, at.lower_a);
  if (!plan.splits_b) {
    const bool shared = plan.triangle;  // B's planes are A's
    place(job.b, workspace, shared ? at.planes_a : at.planes_b, shared ? at.scales_a : at.scales_b,
          shared ? at.stats_a : at.stats_b, shared ? at.lower_a : at.lower_b);
  }
  if (plan.packed_b) {
    const PackedLayout of_b = packed_layout(shape, p.k, p.n);
    place(job.b, static_cast<char*>(p.b_planes), 0, of_b.row_scales, of_b.row_stats, of_b.lower);
  }
  job.steps = static_cast<int>(shape.steps(q.k));
  job.together = shape.together();
  job.groups = job.steps / job.together;
  job.group = kGroup;
  job.b.by_lanes = shape.on_the_fly && job.a.along_k;
  // All planes of half a panel lie together, so that one copy loads them. Packed planes, and planes shared with A, have
  // the layout that tiles of any size can read.
  if (shape.half() && !plan.packed_b && !plan.triangle) job.b.half_apart = 2 * kHalfPlaneBytes;
  job.stores = store_mode(q);
  job.plain_alpha = is_plain_alpha(q.alpha);
  job.scaled_only = q.activation == Activation::kNone && job.plain_alpha && q.k_before == 0;
  job.triangle = plan.triangle;
  const int64_t of_matrix = plan.triangle ? upper_tiles(job.a.tiles) : int64_t{job.a.tiles} * job.b.tiles;
  const int tiles = static_cast<int>(q.batch * of_matrix);
  job.whole = tiles - plan.left;
  job.parts = plan.parts;
  job.work_tiles = job.whole + plan.left * plan.parts;
  job.batch_invariant = plan.batch_invariant;
  const bool many = plan.batch_invariant || int64_t{tiles} * job.steps > kManySteps;
  job.promotion = job.steps > kLongWindow / kStep && many;
  job.refused = reinterpret_cast<uint32_t*>(workspace + at.refused);
  job.masks = reinterpret_cast<uint16_t*>(workspace + at.masks);
  job.row_scales = reinterpret_cast<uint32_t*>(workspace + at.tile_scales);
  job.part_sums = reinterpret_cast<float*>(workspace + at.part_sums);
  job.part_scales = reinterpret_cast<uint32_t*>(workspace + at.part_scales);
  job.arrived = reinterpret_cast<uint32_t*>(workspace + at.arrived);
  return job;
}

template <class Row, int TILE>
void launch_piece(const Problem& p, const SplitPlan& plan, const Context& context) {
  using F = typename Row::Format;
  constexpr Shape kShape = Row::shape(TILE);
  const Job job = make_job(kShape, p, plan, static_cast<char*>(context.workspace));
  const int sms = context.device->sms;
  int cluster = plan.cluster;
  while (cluster > job.groups) cluster /= 2;  // the last piece of k may be short
  if (!plan.splits_b)
    launch_convert<F>(job, !Row::kOnTheFly, !plan.packed_b && !plan.triangle, int64_t{job.work_tiles} * cluster, sms,
                      context.stream);
  if constexpr (Row::kOnTheFly)
    launch_onthefly<kShape.tile_m, kShape.tile_n>(job, plan.splits_b, sms, cluster, context.stream);
  else
    launch_product<F, kShape.tile_m, kShape.tile_n>(job, sms, cluster, context.stream);
  if (plan.slices == 1) return;
  const bool transposes = job.stores == StoreMode::kColMajor;
  const Triangle computed = !plan.triangle ? Triangle::kBoth : transposes ? Triangle::kLower : Triangle::kUpper;
  launch_sum(job.p.d.data, job.p.batch, transposes ? transposed(p) : p, context, computed);
}

}  // namespace

template <class F, bool STREAMS>
void SplitProduct<F, STREAMS>::launch(const Problem& asked, const Plan& planned, const Context& context) {
  const Problem p = solved(asked);
  const auto plan = planned.own<SplitPlan>();
  const Pieces cut = plan.pieces(p);
  with_constant<kTileCount>(planned.tile, [&](auto tile) {
    char* const sums = static_cast<char*>(context.workspace) + (cut.in_d ? 0 : pieces_at(plan));
    for_each_piece(p, cut, sums, context,
                   [&](const Problem& piece) { launch_piece<SplitProduct, tile>(piece, plan, context); });
  });
  if (is_gram(p) && !plan.batch_invariant) launch_mirror(p, context);
}
template void SplitProduct<Bf16x6>::launch(const Problem&, const Plan&, const Context&);
template void SplitProduct<Fp16x3>::launch(const Problem&, const Plan&, const Context&);
template void SplitProduct<Fp16x3, true>::launch(const Problem&, const Plan&, const Context&);

void pack_b(const ConstMatrix& b, ElementType elements, void* planes, const Context& context) {
  const PackedLayout at = packed_layout(SplitProduct<Fp16x3>::shape(0), b.rows, b.cols);
  Problem p;
  p.n = b.cols;
  p.k = b.rows;
  p.a = {nullptr, 0, b.rows, b.rows, 1, 0};
  p.b = b;
  p.elements_b = elements;
  p.b_planes = planes;
  SplitPlan plan = {0, p.n, 1, at.slice, at.slices, 1, 0, true};
  plan.batch_invariant = true;  // batch-invariant products read these planes too
  const Job job = make_job(SplitProduct<Fp16x3>::shape(0), p, plan, nullptr);
  launch_convert<Fp16x3>(job, false, true, 0, context.device->sms, context.stream);
}

Redone redone() {
  Redone all = {};
  for (const Redone& some :
       {redone_in_products<Fp16x3>(), redone_in_products<Bf16x6>(), redone_in_onthefly(), redone_in_rows()}) {
    all.elements += some.elements;
    all.tiles += some.tiles;
  }
  return all;
}

}  // namespace sgemm::split
