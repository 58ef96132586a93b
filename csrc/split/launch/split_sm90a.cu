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

// Returns an operand given as rows along k, `tile` of them per tile. `depth`: k of all slices.
Operand operand(const ConstMatrix& rows, ElementType elements, int64_t count, int64_t depth, int tile) {
  Operand x = {};
  x.data = rows.data;
  x.elements = elements;
  x.size = rows.rows;
  x.stride = rows.row;
  x.k_stride = rows.col;
  x.batch = rows.batch;
  x.count = count;
  x.tiles = static_cast<int>(ceil_div(x.size, tile));
  x.panels = static_cast<int>(ceil_div(x.size, kTile));
  x.split = count * x.panels * kTile;
  x.along_k = runs_along_k(x.k_stride, x.stride);
  x.vector = has_quads(x.lines(depth), elements);
  return x;
}

void place(Operand& x, void* memory, const PlanesLayout& at) {
  x.planes = static_cast<char*>(memory) + at.planes;
  x.row_scales = reinterpret_cast<RowScale*>(static_cast<char*>(memory) + at.row_scales);
  x.row_stats = reinterpret_cast<RowStats*>(static_cast<char*>(memory) + at.row_stats);
  x.lower = reinterpret_cast<bool*>(static_cast<char*>(memory) + at.lower);
}

// Returns a piece's job, with its buffers in the workspace. `p.k`: k of all slices of the piece. `p.d`, `p.c`: D and C,
// not the slices' partial sums.
Job make_job(const RowShape& shape, const Problem& p, const SplitPlan& plan, char* workspace) {
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
  job.a = operand(q.a, q.elements_a, count(q.a), p.k, shape.tile_m);
  job.b = operand(transposed(q.b), q.elements_b, count(q.b), p.k, shape.tile_n);
  if (plan.packed_a)
    place(job.a, p.b_planes, packed_layout(shape, p.k, p.m).b);
  else
    place(job.a, workspace, at.a);
  if (plan.packed_b)
    place(job.b, p.b_planes, packed_layout(shape, p.k, p.n).b);
  else
    place(job.b, workspace, plan.triangle ? at.a : at.b);  // of a triangle, B's planes are A's
  job.steps = static_cast<int>(plan.splits_b ? std::max<int64_t>(1, ceil_div(q.k, kStep)) : shape.steps(q.k));
  job.group = kGroup;
  job.a.all_stats = shape.on_the_fly && !plan.splits_b;
  job.b.by_lanes = shape.on_the_fly && !plan.splits_b && job.a.along_k;
  // All planes of half a panel lie together, so that one copy loads them. Packed planes, and planes shared with A, have
  // the layout that tiles of any size can read.
  const int cols = shape.few ? narrow(q) : shape.tile_n;
  if (cols == kTile / 2 && !plan.packed_b && !plan.triangle) job.b.half_apart = 2 * kHalfPlaneBytes;
  if (cols < kTile / 2 && job.b.count == 1) job.b.split = cols;  // one tile of columns
  job.stores = store_mode(q);
  job.plain_alpha = is_plain_alpha(q.alpha);
  job.scaled_only = q.activation == Activation::kNone && job.plain_alpha && q.k_before == 0;
  job.triangle = plan.triangle;
  job.packed_a = plan.packed_a;
  const int64_t of_matrix = plan.triangle ? upper_tiles(job.a.tiles) : int64_t{job.a.tiles} * job.b.tiles;
  const int tiles = static_cast<int>(q.batch * of_matrix);
  job.whole = tiles - plan.left;
  job.parts = plan.parts;
  job.work_tiles = job.whole + plan.left * plan.parts;
  job.batch_invariant = plan.batch_invariant;
  job.segment = plan.segment;
  const bool many = plan.batch_invariant || int64_t{tiles} * job.steps > kManySteps;
  job.promotion = job.steps > kLongWindow / kStep && many;
  job.refused = reinterpret_cast<uint32_t*>(workspace + at.refused);
  job.masks = reinterpret_cast<uint16_t*>(workspace + at.masks);
  job.row_scales = reinterpret_cast<uint32_t*>(workspace + at.tile_scales);
  job.part_sums = reinterpret_cast<float*>(workspace + at.part_sums);
  job.arrived = reinterpret_cast<uint32_t*>(workspace + at.arrived);
  return job;
}

// Returns the number of persistent blocks, which take the job's work tiles in turn. If no tiles are shared, these are
// only the blocks that equal waves need: fewer blocks leave power for a higher clock.
int64_t persistent_blocks(const Job& job, int sms, int cluster) {
  const int64_t most = sms / cluster, waves = ceil_div(int64_t{job.work_tiles}, most);
  return cluster * (job.parts > 1 ? std::min<int64_t>(job.work_tiles, most) : ceil_div(int64_t{job.work_tiles}, waves));
}

template <class Row, int TILE>
void launch_piece(const Problem& p, const SplitPlan& plan, const Context& context) {
  using F = typename Row::Format;
  constexpr RowShape kShape = Row::shape(TILE);
  const Job job = make_job(kShape, p, plan, static_cast<char*>(context.workspace));
  const int sms = context.device->sms;
  int cluster = plan.cluster;
  while (cluster > job.steps) cluster /= 2;  // the last piece of k may be short
  if (!plan.splits_b)
    launch_convert<F>(job, !Row::kOnTheFly && !plan.packed_a, !plan.packed_b && !plan.triangle,
                      int64_t{job.work_tiles} * cluster, sms, context.stream);
  const int64_t blocks = persistent_blocks(job, sms, cluster);
  if constexpr (Row::kOnTheFly) {
    if (plan.splits_b) launch_both<kShape.tile_m, kShape.tile_n>(job, blocks, context.stream);
    if constexpr (kShape.half())
      if (!plan.splits_b) launch_onthefly<kShape.tile_m, kShape.tile_n>(job, blocks, context.stream);
  } else if constexpr (Row::kFewRows)
    launch_few_rows(job, narrow(job.p), blocks, context.stream);
  else if constexpr (std::is_same_v<F, Fp16x3>)
    if (job.segment && job.segment < job.steps)
      launch_segments<kShape.tile_m, kShape.tile_n>(job, blocks, context.stream);
    else
      launch_product<F, kShape.tile_m, kShape.tile_n>(job, blocks, cluster, context.stream);
  else
    launch_product<F, kShape.tile_m, kShape.tile_n>(job, blocks, cluster, context.stream);
  if (plan.slices == 1) return;
  const bool transposes = job.stores == StoreMode::kColMajor;
  const Triangle computed = !plan.triangle ? Triangle::kBoth : transposes ? Triangle::kLower : Triangle::kUpper;
  launch_sum(job.p.d.data, job.p.batch, transposes ? transposed(p) : p, context, computed);
}

template <class Row>
void launch_row(const Problem& p, const Plan& planned, const Context& context) {
  const auto plan = planned.own<SplitPlan>();
  const Pieces cut = plan.pieces(p);
  with_constant<Row::kTileCount>(planned.tile, [&](auto tile) {
    const auto run = [&](const Problem& piece) { launch_piece<Row, tile>(piece, plan, context); };
    if (cut.in_d)
      for_each_piece(p, cut, run);
    else
      for_each_piece(p, cut, static_cast<char*>(context.workspace) + pieces_at(plan), context, run);
  });
  if (is_gram(p) && !plan.batch_invariant) launch_mirror(p, context);
}

}  // namespace

template <class F, bool STREAMS>
void SplitProduct<F, STREAMS>::launch(const Problem& p, const Plan& plan, const Context& context) {
  if (plan.own<SplitPlan>().few_rows) return launch_row<FewRowsProduct>(FewRowsProduct::exchanged(p), plan, context);
  launch_row<SplitProduct>(solved(p), plan, context);
}
void FewRowsProduct::launch(const Problem& p, const Plan& plan, const Context& context) {
  launch_row<FewRowsProduct>(solved(p), plan, context);
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
  for (const Redone& some : {redone_in_products<Fp16x3>(), redone_in_products<Bf16x6>(), redone_in_onthefly(),
                             redone_in_segments(), redone_in_few_rows(), redone_in_rows()}) {
    all.elements += some.elements;
    all.tiles += some.tiles;
  }
  return all;
}

}  // namespace sgemm::split
