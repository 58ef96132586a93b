// The launches of a split product: for each piece the splitting pass, the product and the sum of slices.
#include "split.h"

#include <algorithm>

#include "../gpu/launch_cluster.cuh"
#include "../epilogue/mirror.cuh"
#include "../epilogue/split_k_reduction.cuh"
#include "balance.cuh"
#include "pass.cuh"
#include "product.cuh"
#include "streamed.cuh"

namespace sgemm::split {
namespace {

constexpr int kGroup = 8;  // rows of tiles walked together: 8 to 12 are fastest at 4096 and 8192

int next_power_of_two(int64_t x) {
  int power = 1;
  while (power < x) power *= 2;
  return power;
}

// `tile`: how many of its rows a block's tile has.
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

// Shared memory that keeps a block of the pass alone on its SM. Its blocks start while the kernel in front
// still runs, and would crowd on the few SMs that are free by then.
constexpr int kAloneBytes = 116 * 1024;

// Whether one of the operands that are split comes in strips of columns.
bool has_strips(const Job& job, bool split_a, bool split_b) {
  return (split_a && !job.a.along_k) || (split_b && !job.b.along_k);
}

struct PassLaunch {
  PassGrid grid;
  int cluster;
  int64_t blocks;
};

PassLaunch plan_pass(const Job& job, bool split_a, bool split_b, int threads) {
  const int64_t depth = int64_t{job.steps} * kStep;
  const bool strips = has_strips(job, split_a, split_b);
  const int cluster = strips ? static_cast<int>(ceil_div(depth, kHeld * threads / kStripQuads)) : 1;
  PassGrid grid = {};
  grid.row_threads = std::max(8, next_power_of_two(ceil_div(depth, 4 * kHeld)));
  const auto blocks = [&](const Operand& x) {
    const int64_t panels = x.count * x.panels;
    return x.along_k ? panels * kTile * grid.row_threads / threads : panels * (kTile / kStrip) * cluster;
  };
  grid.busy_b = split_b ? blocks(job.b) : 0;
  grid.busy_a = split_a ? blocks(job.a) : 0;
  grid.blocks_b = ceil_div(grid.busy_b, cluster) * cluster;
  return {grid, cluster, grid.blocks_b + ceil_div(grid.busy_a, cluster) * cluster};
}

void launch_balance(const Job& job, Stream stream) {
  const int64_t blocks = int64_t{job.balance_chunks()} * (job.balance_entry(job.p.batch - 1) + 1);
  launch(choose_balance, blocks, kBalanceChunk, 0, 1, true, stream, job);
}

template <class F, int THREADS>
void launch_pass(const Job& job, bool split_a, bool split_b, int sms, Stream stream) {
  const PassLaunch pass = plan_pass(job, split_a, split_b, THREADS);
  constexpr int kBytes = Held<THREADS, true>::kBytes, kMostBytes = std::max(kBytes, kAloneBytes);
  const int bytes = pass.blocks <= sms ? kMostBytes : kBytes;
  const auto run = [&](auto kind) {
    launch_with_memory<split_pass<F, THREADS, kind>>(pass.blocks, THREADS, bytes, kMostBytes, pass.cluster, stream, job,
                                                     pass.grid);
  };
  using Kind = PassKind;
  if constexpr (std::is_same_v<F, Fp16x3>) {
    const auto is_float32 = [](const Operand& x) { return x.elements == ElementType::kFloat32; };
    if (!is_float32(job.a) || !is_float32(job.b)) return run(std::integral_constant<Kind, Kind::k16Bits>());
    if (job.balance) return run(std::integral_constant<Kind, Kind::kBalanced>());
  }
  run(std::integral_constant<Kind, Kind::kPlain>());
}

// Before a product of so many blocks.
template <class F>
void launch_pass(const Job& job, bool split_a, bool split_b, int64_t product_blocks, int sms, Stream stream) {
  const int64_t depth = int64_t{job.steps} * kStep;
  const bool strips = has_strips(job, split_a, split_b);
  // As small as may be, if that leaves SMs to the product's blocks, which then are ready when the pass
  // ends: a quarter of them, or as many as there are blocks, up to half.
  const int64_t others = sms - std::clamp<int64_t>(product_blocks, sms / 4, sms / 2);
  const auto few = [&](int threads) {
    const PassLaunch pass = plan_pass(job, split_a, split_b, threads);
    return pass.cluster <= kMaxCluster && depth <= 1024 && pass.blocks <= others;
  };
  // A block holds as many of a strip's k as it has threads; a cluster, more.
  if (strips && depth > kMaxCluster * 512)
    launch_pass<F, 1024>(job, split_a, split_b, sms, stream);
  else if (few(128) || (strips && depth <= 128))
    launch_pass<F, 128>(job, split_a, split_b, sms, stream);
  else if (few(256) || (strips && depth <= 256))
    launch_pass<F, 256>(job, split_a, split_b, sms, stream);
  else
    launch_pass<F, 512>(job, split_a, split_b, sms, stream);
}

// A kernel of persistent blocks, of which each has `bytes` of shared memory and the sums' staging behind them.
template <auto KERNEL, class... Params>
void launch_persistent(int threads, int bytes, int sms, int cluster, Stream stream, const Job& job,
                       const Params&... params) {
  bytes += kStagingBytes;
  // Where waves are of whole tiles, no more blocks than the last wave needs: the rest of the power is for their clock.
  const int64_t most = sms / cluster, waves = ceil_div(int64_t{job.work_tiles}, most);
  const int64_t clusters =
      job.parts > 1 ? std::min<int64_t>(job.work_tiles, most) : ceil_div(int64_t{job.work_tiles}, waves);
  launch_with_memory<KERNEL>(clusters * cluster, threads, bytes, bytes, cluster, stream, job, params...);
}

template <class F, class Shape, bool A_ALONG_M, bool B_ALONG_N>
void launch_product(const Job& job, int sms, int cluster, Stream stream) {
  launch_persistent<split_product<F, Shape, A_ALONG_M, B_ALONG_N>>(kProductThreads, ProductRing<F, Shape>::kBytes, sms,
                                                                   cluster, stream, job);
}

template <class Shape, bool A_ALONG_M, bool B_ALONG_N, bool SPLITS_B>
void launch_streamed(Job job, int sms, int cluster, Stream stream) {
  RawMaps maps = {};
  const ConstMatrix lines_a = job.a.lines(job.k_all), lines_b = job.b.lines(job.k_all);
  job.a.mapped = can_be_mapped(lines_a, job.a.count);
  if (job.a.mapped) maps.a = RawPanel<A_ALONG_M, kTile>::map(lines_a, job.a.count);
  job.b.mapped = SPLITS_B && can_be_mapped(lines_b, job.b.count);
  if (job.b.mapped) maps.b = RawPanel<B_ALONG_N, Shape::kCols>::map(lines_b, job.b.count);
  launch_persistent<split_streamed<Shape, A_ALONG_M, B_ALONG_N, SPLITS_B>>(kProductThreads, StreamedRing<Shape>::kBytes,
                                                                           sms, cluster, stream, job, maps);
}

// Whether D's neighbours in memory are those of a column.
bool runs_down(const Problem& p) { return p.d.row == 1 && p.d.col != 1; }

// A piece's problem with its buffers. The k of `p` is that of its slices, d and c are whole.
Job make_job(const Shape& shape, const Problem& p, const SplitPlan& plan, char* workspace) {
  const Layout at = layout(shape, p, plan);
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
    if (runs_down(p)) {  // neighbours lie as those of d do
      job.p.d.row = 1;
      job.p.d.col = p.m;
    }
  }
  const Problem& q = job.p;
  const auto count = [&](const ConstMatrix& x) { return split_matrices(x, q.batch, plan); };
  job.a = operand(q.a.data, q.elements_a, q.m, q.a.row, q.a.col, q.a.batch, count(q.a), p.k, shape.tile_m);
  job.b = operand(q.b.data, q.elements_b, q.n, q.b.col, q.b.row, q.b.batch, count(q.b), p.k, shape.tile_n);
  const auto place = [](Operand& x, char* from, size_t planes, size_t words, size_t guards, size_t lower) {
    x.planes = from + planes;
    x.words = reinterpret_cast<uint32_t*>(from + words);
    x.guards = reinterpret_cast<uint32_t*>(from + guards);
    x.lower = reinterpret_cast<bool*>(from + lower);
  };
  if (!shape.streams) place(job.a, workspace, at.planes_a, at.words_a, at.guards_a, at.lower_a);
  if (!plan.splits_b) {
    const bool shared = plan.triangle;  // A's
    place(job.b, workspace, shared ? at.planes_a : at.planes_b, shared ? at.words_a : at.words_b,
          shared ? at.guards_a : at.guards_b, shared ? at.lower_a : at.lower_b);
  }
  if (plan.packed_b) {
    const PackedLayout of_b = packed_layout(shape, p.k, p.n);
    place(job.b, static_cast<char*>(p.b_planes), 0, of_b.words, of_b.guards, of_b.lower);
  }
  job.steps = static_cast<int>(shape.steps(q.k));
  job.together = shape.together();
  job.groups = job.steps / job.together;
  job.group = kGroup;
  job.b.by_lanes = shape.streams && job.a.along_k;
  // A copy for half a panel. Packed planes, and those that are A's too, are for tiles of any size.
  if (shape.half() && !plan.packed_b && !plan.triangle) job.b.half_apart = kPanelBytes / 2;
  job.down = runs_down(q);
  job.quads = ends_in_groups<4>(q);
  job.pairs = ends_in_groups<2>(q);
  job.cut_quads = job.quads && !has_aligned_rows<kSectorFloats>(q.d);
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
  if (plan.balances) {
    job.balance = reinterpret_cast<float*>(workspace + at.balance);
    job.balanced = reinterpret_cast<uint32_t*>(workspace + at.balanced);
  }
  job.marks = reinterpret_cast<uint32_t*>(workspace + at.marks);
  job.masks = reinterpret_cast<uint16_t*>(workspace + at.masks);
  job.words = reinterpret_cast<uint32_t*>(workspace + at.tile_words);
  job.part_sums = reinterpret_cast<float*>(workspace + at.part_sums);
  job.part_words = reinterpret_cast<uint32_t*>(workspace + at.part_words);
  job.arrived = reinterpret_cast<uint32_t*>(workspace + at.arrived);
  return job;
}

template <class Row, int TILE>
void launch_piece(const Problem& p, const SplitPlan& plan, const Context& context) {
  using F = typename Row::Format;
  constexpr Shape kShape = Row::shape(TILE);
  using Tile = TileShape<kShape.tile_m, kShape.tile_n>;
  const Job job = make_job(kShape, p, plan, static_cast<char*>(context.workspace));
  const int sms = context.device->sms;
  int cluster = plan.cluster;
  while (cluster > job.groups) cluster /= 2;  // the last piece of k may be short
  if (plan.balances) launch_balance(job, context.stream);
  if (!plan.splits_b)
    launch_pass<F>(job, !Row::kStreams, !plan.packed_b && !plan.triangle, int64_t{job.work_tiles} * cluster, sms,
                   context.stream);
  with_constant(!job.a.along_k, [&](auto a_along_m) {
    with_constant(!job.b.along_k, [&](auto b_along_n) {
      if constexpr (!Row::kStreams)
        launch_product<F, Tile, a_along_m, b_along_n>(job, sms, cluster, context.stream);
      else if (plan.splits_b)
        launch_streamed<Tile, a_along_m, b_along_n, true>(job, sms, cluster, context.stream);
      else
        launch_streamed<Tile, a_along_m, b_along_n, false>(job, sms, cluster, context.stream);
    });
  });
  const Triangle computed = !plan.triangle ? Triangle::kBoth
                            : job.down     ? Triangle::kLower
                                           : Triangle::kUpper;  // of what is summed
  if (plan.slices > 1) launch_sum(job.p.d.data, job.p.batch, true, job.down ? transposed(p) : p, context, computed);
}

}  // namespace

template <class F, bool STREAMS>
void SplitProduct<F, STREAMS>::launch(const Problem& asked, const Plan& planned, const Context& context) {
  const Problem p = solved(asked);
  const auto plan = planned.own<SplitPlan>();
  const Pieces cut = plan.pieces(p);
  with_constant<kTileCount>(planned.tile, [&](auto tile) {
    char* const sums = static_cast<char*>(context.workspace) + (cut.in_d ? 0 : pieces_at(shape(tile), p, plan));
    for_each_piece(p, cut, true, sums, context,
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
  plan.batch_invariant = true;  // for products that are
  const Job job = make_job(SplitProduct<Fp16x3>::shape(0), p, plan, nullptr);
  launch_pass<Fp16x3>(job, false, true, 0, context.device->sms, context.stream);
}

Redone redone() {
  const Redone tiles = redone_here(), rows = redone_in_rows();
  return {tiles.elements + rows.elements, tiles.tiles + rows.tiles};
}

}  // namespace sgemm::split
