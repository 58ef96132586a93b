// Checks properties of every plan of a split product, on random problems, devices and memory limits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "split/plan/plan.h"
#include "split/plan/segments.h"
#include "split/rows.h"

using namespace sgemm;
using namespace sgemm::split;

namespace {

#define REQUIRE(condition)                                                                                             \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      std::printf("%s\n  m %lld n %lld k %lld batch %lld, %d SMs, limit %zu, tiles %d x %d, packed %d\n", #condition,  \
                  (long long)p.m, (long long)p.n, (long long)p.k, (long long)p.batch, device.sms, limit, shape.tile_m, \
                  shape.tile_n, packed);                                                                               \
      std::exit(1);                                                                                                    \
    }                                                                                                                  \
  } while (0)

// Adds the shape of each of a row's tiles.
template <class Row>
void add_shapes(std::vector<RowShape>& shapes) {
  for (int tile = 0; tile < Row::kTileCount; ++tile) shapes.push_back(Row::shape(tile));
}

std::vector<RowShape> all_shapes() {
  std::vector<RowShape> shapes;
  add_shapes<SplitProduct<Fp16x3>>(shapes);
  add_shapes<SplitProduct<Bf16x6>>(shapes);
  add_shapes<SplitProduct<Fp16x3, true>>(shapes);
  return shapes;
}

int64_t tiles_of(const RowShape& shape, const Problem& piece, const SplitPlan& plan) {
  return ceil_div(piece.m, shape.tile_m) * ceil_div(piece.n, shape.tile_n) * piece.batch * plan.slices;
}

// Returns true if each of a piece's buffers is no larger than that of the largest piece, whose layout all pieces use.
bool fits(const Layout& piece, const Layout& largest) {
  constexpr size_t kOffsets = sizeof(Layout) / sizeof(size_t);
  std::array<size_t, kOffsets> of_piece, of_largest;
  std::memcpy(of_piece.data(), &piece, sizeof piece);
  std::memcpy(of_largest.data(), &largest, sizeof largest);
  for (size_t i = 0; i + 1 < kOffsets; ++i)
    if (of_piece[i + 1] - of_piece[i] > of_largest[i + 1] - of_largest[i]) return false;
  return true;
}

void check(const RowShape& shape, const Problem& p, const Device& device, size_t limit, bool packed) {
  const SplitPlan plan = split::plan(shape, p, device, limit, packed);
  REQUIRE(std::isfinite(plan.seconds) && plan.seconds > 0);
  REQUIRE(plan.slice % (shape.together() * kStep) == 0 && plan.slice <= kMaxSlice && plan.slices >= 1);
  REQUIRE(plan.m >= 1 || p.m == 0);
  REQUIRE(plan.n >= 1 || p.n == 0);
  REQUIRE(plan.batch >= 1 && plan.batch <= p.batch);
  REQUIRE(plan.slices == 1 || plan.batch == 1);
  REQUIRE(plan.left == 0 ? plan.parts == 1 : plan.left > 0 && plan.parts > 1 && plan.left * plan.parts <= device.sms);
  REQUIRE(plan.cluster == 1 || plan.parts == 1);
  const size_t workspace = split::workspace(p, plan);
  REQUIRE(plan.layout.total <= workspace);
  // The first and the last pieces, which may be smaller.
  for (int64_t m : {std::min(plan.m, p.m), p.m % std::max<int64_t>(1, plan.m)})
    for (int64_t n : {std::min(plan.n, p.n), p.n % std::max<int64_t>(1, plan.n)})
      for (int64_t k : {std::min(plan.k(), p.k), p.k % plan.k()})
        for (int64_t batch : {plan.batch, p.batch % plan.batch}) {
          if (m == 0 || n == 0 || batch == 0) continue;
          Problem piece = p;
          piece.m = m;
          piece.n = n;
          piece.k = k;
          piece.batch = batch;
          const int64_t tiles = tiles_of(shape, piece, plan);
          REQUIRE(fits(layout(shape, piece, plan), plan.layout));
          REQUIRE(tiles >= plan.left);
          REQUIRE(plan.cluster == 1 || tiles * plan.cluster <= device.sms);
        }
  if (p.batch == 1 || p.k <= kMaxSlice) return;
  // Slices are run as a batch, so matrices run one after the other.
  Problem one = p;
  one.batch = 1;
  REQUIRE(plan.seconds == p.batch * split::plan(shape, one, device, limit, packed).seconds);
}

// Checks a batch-invariant plan: whatever determines the order of sums is the same for other numbers of rows and
// matrices, for the kernel of few rows, and, within a segment of k, for other numbers of columns.
void check_invariant(const RowShape& shape, const Problem& p, const Problem& other, const Device& device, size_t limit,
                     bool packed) {
  const SplitPlan plan = split::invariant_plan(shape, p, device, limit, packed);
  REQUIRE(std::isfinite(plan.seconds) && plan.seconds > 0);
  REQUIRE(plan.batch_invariant && plan.cluster == 1 && plan.left == 0 && plan.parts == 1);
  REQUIRE(plan.batch >= 1 && plan.batch <= p.batch && plan.m <= p.m && plan.n <= p.n);
  REQUIRE(plan.slices == 1 || plan.batch == 1);
  const SplitPlan least = split::invariant_plan(shape, other, device, 0, packed);
  REQUIRE(packed || least.k() == kStep);
  if (plan.k() > kStep && !packed) REQUIRE(plan.layout.total <= limit);
  for (const RowShape& tiles : {SplitProduct<Fp16x3>::shape(0), SplitProduct<Fp16x3>::shape(1)}) {
    const SplitPlan same = split::invariant_plan(tiles, other, device, limit, packed);
    REQUIRE(same.slice == plan.slice && same.slices == plan.slices);
  }
  REQUIRE(plan.segment % 2 == 0 && plan.segment >= kLeastSegment);
  REQUIRE(plan.segment == segment_steps(p.n, ceil_div(p.k, plan.slice), shape.steps(plan.slice)));
  Problem rows = p;
  rows.m = other.m;
  rows.batch = other.batch;
  REQUIRE(split::invariant_plan(shape, rows, device, limit, packed).segment == plan.segment);
  for (const Problem& x : {p, rows}) {
    const Problem q = transposed(x);
    const auto few = split::invariant_few_plan(FewRowsProduct::shape(0), q, device, limit, packed);
    if (!few) continue;
    REQUIRE(few->slice == plan.slice && few->slices == plan.slices && few->segment == plan.segment);
    REQUIRE(few->few_rows && few->batch_invariant && few->packed_a == packed && !few->packed_b);
    REQUIRE(few->m == q.m && few->n == q.n && few->k() >= q.k && few->layout.total <= limit);
    REQUIRE(std::isfinite(few->seconds) && few->seconds > 0);
    const int64_t parts = ceil_div(shape.steps(plan.slice), plan.segment);
    REQUIRE(few->left == 0 ? parts <= 1 || q.m * q.n * q.batch == 0 : few->parts == parts);
    const int64_t tiles = ceil_div(q.m, kTile) * ceil_div(q.n, kTile / 2) * few->batch * few->slices;
    REQUIRE(few->left == 0 || few->left == tiles);
  }
  const PackedLayout of_b = packed_layout(shape, p.k, p.n);
  if (packed) REQUIRE(plan.slice == of_b.slice && plan.slices == of_b.slices);
}

// The rule of segments: weights of several sizes, as steps of k.
static_assert(segment_steps(4096, 1, 128) == 32 && segment_steps(11008, 1, 128) == 128);
static_assert(segment_steps(256, 1, 224) == 8 && segment_steps(1024, 1, 128) == 8);
static_assert(segment_steps(1, 1, 8) == 8 && segment_steps(100000, 1, 256) == 256 && segment_steps(8192, 1, 128) == 64);
static_assert(segment_steps(130, 2, 141) == 8 && segment_steps(128 * 120, 1, 127) == 128);

}  // namespace

int main(int, char** argv) {
  const std::vector<RowShape> shapes = all_shapes();
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  // Most sizes are small, some are not.
  const auto size = [&](int bits) { return up_to((int64_t{1} << up_to(bits)) + 1); };
  for (int i = 0; i < 70000; ++i) {
    Problem p;
    p.m = size(20);
    p.n = size(20);
    p.k = size(18);
    p.batch = 1 + (up_to(1) ? size(10) : 0);
    const bool shared = up_to(3) == 0;  // one A for the whole batch
    static const float data[4] = {};
    p.a = {data, p.m, p.k, std::max<int64_t>(1, p.k), 1, shared || p.batch == 1 ? 0 : p.m * p.k};
    p.b = {data, p.k, p.n, std::max<int64_t>(1, p.n), 1, p.batch == 1 ? 0 : p.k * p.n};
    static constexpr int kMultiprocessors[] = {1, 2, 7, 16, 97, 114, 132};
    Device device = kH200;
    device.sms = kMultiprocessors[up_to(6)];
    const size_t limit = size_t{1} << (12 + up_to(25));
    for (const RowShape& shape : shapes) check(shape, p, device, limit, false);
    Problem other = p;
    other.m = size(20);
    other.n = size(20);
    other.batch = 1 + size(10);
    const auto check_both = [&](bool packed) {
      for (const RowShape& shape : shapes)
        if (!shape.on_the_fly && shape.pairs == 1) check_invariant(shape, p, other, device, limit, packed);
    };
    check_both(false);
    p.batch = other.batch = 1;
    p.a.batch = p.b.batch = other.a.batch = other.b.batch = 0;
    for (const RowShape& shape : shapes)
      if (p.k && !shape.on_the_fly && shape.pairs == 1) check(shape, p, device, limit, true);
    if (p.k) check_both(true);
  }
  std::puts("all plans hold");
}
