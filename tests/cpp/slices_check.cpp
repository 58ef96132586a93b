// Checks the slices of attention's gradients, on random problems: they have each head once, with its operands and
// results, and the workspace is as small as promised.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "attention/backward/gradients.h"
#include "problem/buffers.h"

namespace sgemm::attention::backward {
namespace {

#define REQUIRE(condition)                                                                                         \
  do {                                                                                                             \
    if (!(condition)) {                                                                                            \
      std::printf("%s\n  %d batches, %d heads, %d groups, %d queries, %d keys, depth %d\n", #condition, p.batches, \
                  p.heads, p.groups, p.queries, p.keys, p.depth);                                                  \
      std::exit(1);                                                                                                \
    }                                                                                                              \
  } while (0)

template <class T>
bool same(const MatrixView<T>& x, int64_t i, const MatrixView<T>& y, int64_t j) {
  const MatrixView<T> a = x.matrix(i), b = y.matrix(j);
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.row == b.row;
}

const char* mask_of(const Problem& p, int64_t head) {
  const int64_t offset = head / p.heads * p.mask.batch + head % p.heads * p.mask.head;
  return static_cast<const char*>(p.mask.data) + offset * (p.mask.kind == MaskKind::kBool ? 1 : 4);
}

// Requires that a slice's heads and groups are those of the problem, from its first ones on.
void check_slice(const Gradients& g, const Gradients& slice, int64_t first_head, int64_t first_group) {
  const Problem &p = g.p, &part = slice.p;
  for (int64_t i = 0; i < int64_t{part.batches} * part.heads; ++i) {
    const int64_t head = first_head + i;
    REQUIRE(same(part.q, i, p.q, head) && same(slice.out, i, g.out, head) && same(slice.grad, i, g.grad, head));
    REQUIRE(same(slice.q, i, g.q, head) && mask_of(part, i) == mask_of(p, head));
    REQUIRE(slice.logsumexp + i * padded_queries(p.queries) == g.logsumexp + head * padded_queries(p.queries));
    REQUIRE(slice.mask + i * p.queries * p.keys == g.mask + head * p.queries * p.keys);
  }
  for (int64_t i = 0; i < int64_t{part.batches} * part.groups; ++i) {
    const int64_t group = first_group + i;
    REQUIRE(same(part.k, i, p.k, group) && same(part.v, i, p.v, group));
    REQUIRE(same(slice.k, i, g.k, group) && same(slice.v, i, g.v, group));
  }
}

int64_t check(const Gradients& g, const Device& device) {
  const Problem& p = g.p;
  if (p.batches == 0 || p.groups == 0) return layout(g, device).total > 8192;
  const Slice largest = largest_slice(g);
  REQUIRE(1 <= largest.batches && largest.batches <= p.batches && 1 <= largest.groups && largest.groups <= p.groups);
  REQUIRE(largest.batches == 1 || largest.groups == p.groups);
  const int64_t share = p.heads / p.groups;
  int64_t groups = 0, slices = 0;
  for (int batch = 0; batch < p.batches; batch += largest.batches)
    for (int group = 0; group < p.groups; group += largest.groups, ++slices) {
      const Gradients slice = slice_at(g, largest, batch, group);
      REQUIRE(groups == int64_t{batch} * p.groups + group && slice.p.heads == slice.p.groups * share);
      REQUIRE(slice.p.batches <= largest.batches && slice.p.groups <= largest.groups);
      check_slice(g, slice, groups * share, groups);
      groups += int64_t{slice.p.batches} * slice.p.groups;
    }
  REQUIRE(groups == int64_t{p.batches} * p.groups);
  const size_t total = layout(g, device).total;
  Gradients one = g;
  one.p.batches = 1;
  one.p.heads = static_cast<int>(share);
  one.p.groups = 1;
  // Buffers are rounded up to 1 KiB each.
  const int64_t most = std::max<int64_t>(workspace_limit(), layout(one, device).total);
  REQUIRE(static_cast<int64_t>(total) <= most + 8192);
  const Seconds seconds = predicted(g, device);
  REQUIRE(0 < seconds.ours && seconds.ours < 1e9);
  return slices;
}

void check_all(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto up_to = [&](int64_t most) { return static_cast<int>(1 + random() % most); };
  const auto size = [&](int bits) { return up_to(int64_t{1} << up_to(bits)); };
  static float memory[4];  // offsets of pointers aren't read
  int64_t cut = 0;
  for (int i = 0; i < 20000; ++i) {
    Gradients g;
    Problem& p = g.p;
    p.batches = size(6) - (i % 100 == 0);
    p.groups = size(5) - (i % 101 == 0);
    p.heads = p.groups * up_to(4);
    p.queries = size(13);
    p.keys = size(13);
    p.depth = 8 * up_to(16);
    p.value_depth = random() % 2 ? p.depth : 8 * up_to(16);
    p.causal = random() % 2;
    const auto view = [&](int heads, int rows, int depth) {
      const int64_t row = int64_t{heads} * depth, matrix = int64_t{rows} * depth;
      const BatchStride strided(rows * row, heads, depth);  // heads of a row lie side by side
      return random() % 2 ? Matrix{memory, rows, depth, row, 1, strided}
                          : Matrix{memory, rows, depth, depth, 1, matrix};
    };
    const auto constant = [&](int heads, int rows, int depth) {
      const Matrix x = view(heads, rows, depth);
      return ConstMatrix{x.data, x.rows, x.cols, x.row, x.col, x.batch};
    };
    p.q = constant(p.heads, p.queries, p.depth);
    p.k = constant(p.groups, p.keys, p.depth);
    p.v = constant(p.groups, p.keys, p.value_depth);
    g.out = constant(p.heads, p.queries, p.value_depth);
    g.grad = constant(p.heads, p.queries, p.value_depth);
    g.q = view(p.heads, p.queries, p.depth);
    g.k = view(p.groups, p.keys, p.depth);
    g.v = view(p.groups, p.keys, p.value_depth);
    g.logsumexp = g.mask = memory;
    const int64_t of_mask = int64_t{p.queries} * p.keys;
    p.mask = {memory,
              random() % 2 ? MaskKind::kBool : MaskKind::kFloat,
              random() % 2 ? of_mask * p.heads : 0,
              random() % 2 ? of_mask : 0,
              p.keys,
              1};
    workspace_mib() = up_to(256);
    cut += check(g, kH200) > 1;
  }
  if (cut < 1000) std::exit(1);
}

}  // namespace
}  // namespace sgemm::attention::backward

int main(int, char** argv) {
  sgemm::attention::backward::check_all(std::strtoull(argv[1], nullptr, 10));
  std::puts("all slices hold");
}
