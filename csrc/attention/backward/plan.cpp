// Slices of attention's gradients, their workspace, and the predicted time.
#include <algorithm>
#include <cmath>

#include "../../models/attention.h"
#include "../../problem/buffers.h"
#include "../../problem/views.h"
#include "gradients.h"

namespace sgemm::attention::backward {
namespace {

// Pairs of `tile` rows and `block` rows of the other side, of all heads. Causal ones are about half.
double pairs(const Problem& p, int64_t tiles, int64_t blocks) {
  const double all = double(p.batches) * p.heads * double(tiles) * double(blocks);
  const double share = double(std::min(p.queries, p.keys)) / p.queries;
  return p.causal ? std::min(all, all * (1 - share / 2) + all / double(blocks)) : all;
}

// Factor on times of an H200. All kernels multiply on tensor cores.
double slower_than_h200(const Device& device) { return kH200.clock_ghz / (device.clock_ghz * device.tensor_rate); }

double streamed_seconds(const Gradients& g, const Device& device) {
  constexpr GradientsModel ours = kGradients;
  const Problem& p = g.p;
  const int index = compiled_depth(g) / 64 - 1;
  const double heads = double(p.batches) * p.heads, groups = double(p.batches) * p.groups;
  const double slower = slower_than_h200(device);
  const double factor = slower * (p.mask.kind != MaskKind::kNone ? ours.masked[index] : 1);
  const int64_t query_blocks = ceil_div(p.queries, kRows), key_blocks = ceil_div(p.keys, kRows);
  const int64_t query_tiles = ceil_div(p.queries, kTile), key_tiles = ceil_div(p.keys, kTile);
  const Slice slice = largest_slice(g);
  const double slices = double(ceil_div(p.batches, slice.batches) * ceil_div(p.groups, slice.groups));
  // Tiles share the thread blocks, and no slice is finished before its longest tile.
  const double tiles = groups * double(key_tiles) + heads * double(query_tiles);
  const double work = factor * (pairs(p, key_tiles, query_blocks) * ours.keys[index] +
                                pairs(p, query_tiles, key_blocks) * ours.queries[index]);
  const double longest = factor * std::max(ours.keys[index] * double(query_blocks) * heads / groups,
                                           ours.queries[index] * double(key_blocks)) +
                         slower * ours.tile;
  const double compute = std::max((work + tiles * slower * ours.tile) / device.sms, slices * longest);
  const double read =
      4 * (heads * p.queries * (p.depth + 2.0 * p.value_depth) + groups * p.keys * (p.depth + 1.0 * p.value_depth));
  const double planes = 8.0 * kRows * compiled_depth(g) * (heads * double(query_blocks) + groups * double(key_blocks));
  return slices * ours.launch + compute + (read + planes) / (ours.bandwidth * device.bandwidth_gbs * 1e9);
}

// Thread blocks of one SM take two heads at a time.
double resident_seconds(const Gradients& g, const Device& device) {
  const bool masked = g.p.mask.kind != MaskKind::kNone;
  const int64_t rounds = ceil_div(ceil_div(int64_t{g.p.batches} * g.p.heads, 2), device.sms);
  return kGradients.launch_resident +
         slower_than_h200(device) * double(rounds) * kGradients.two_heads * (masked ? kGradients.masked[0] : 1);
}

int64_t bytes_of_planes(const Gradients& g) { return int64_t{4} * kRows * compiled_depth(g); }  // of a block of rows

// Returns the size of equal parts of `count`, of at most `most` each; the last part may be smaller.
int even_part(int count, int64_t most) { return static_cast<int>(ceil_div(count, ceil_div(count, most))); }

}  // namespace

bool stay_in_shared_memory(const Gradients& g, const Device& device) {
  const Problem& p = g.p;
  return p.queries <= kRows && p.keys <= kRows && compiled_depth(g) == 64 && p.heads == p.groups &&
         resident_seconds(g, device) < streamed_seconds(g, device);
}

// A slice fits the workspace's limit, unless it is a single group.
Slice largest_slice(const Gradients& g) {
  const Problem& p = g.p;
  if (!p.batches || !p.groups) return {1, 1};
  const int64_t queries = p.heads / p.groups * ceil_div(p.queries, kRows), keys = ceil_div(p.keys, kRows);
  const int64_t of_group =
      2 * bytes_of_planes(g) * (queries + keys) + kQueryBlockBytes * queries + kKeyBlockBytes * keys;
  const int64_t most = static_cast<int64_t>(workspace_limit()) / std::max<int64_t>(1, of_group);
  const int64_t taken = std::clamp<int64_t>(most, 1, int64_t{p.batches} * p.groups);
  return taken >= p.groups ? Slice{even_part(p.batches, taken / p.groups), p.groups}
                           : Slice{1, even_part(p.groups, taken)};
}

Gradients slice_at(const Gradients& g, const Slice& largest, int batch, int group) {
  const int64_t share = g.p.heads / g.p.groups, first_group = int64_t{batch} * g.p.groups + group,
                first_head = first_group * share;
  Gradients slice = g;
  Problem& p = slice.p;
  p.batches = std::min(largest.batches, g.p.batches - batch);
  p.groups = std::min(largest.groups, g.p.groups - group);
  p.heads = static_cast<int>(p.groups * share);
  const auto from = [](auto& x, int64_t matrix) {
    if (x.data) x = block(x, matrix, 0, 0, x.rows, x.cols);
  };
  for (ConstMatrix* x : {&p.q, &slice.out, &slice.grad}) from(*x, first_head);
  for (ConstMatrix* x : {&p.k, &p.v}) from(*x, first_group);
  for (Matrix* x : {&slice.k, &slice.v}) from(*x, first_group);
  from(slice.q, first_head);
  slice.logsumexp += first_head * padded_queries(p.queries);
  if (slice.mask) slice.mask += first_head * p.queries * p.keys;
  const int64_t of_mask = batch * p.mask.batch + group * share * p.mask.head;
  if (p.mask.data)
    p.mask.data = static_cast<const char*>(p.mask.data) + of_mask * (p.mask.kind == MaskKind::kBool ? 1 : 4);
  return slice;
}

Layout layout(const Gradients& g, const Device& device) {
  Layout at = {};
  if (!g.p.batches || !g.p.groups || stay_in_shared_memory(g, device)) return at;
  const Problem p = slice_at(g, largest_slice(g), 0, 0).p;
  Buffers buffers;
  at.query_blocks = int64_t{p.batches} * p.heads * ceil_div(p.queries, kRows);
  at.key_blocks = int64_t{p.batches} * p.groups * ceil_div(p.keys, kRows);
  at.q = buffers.take(at.query_blocks * bytes_of_planes(g));
  at.grad = buffers.take(at.query_blocks * bytes_of_planes(g));
  at.k = buffers.take(at.key_blocks * bytes_of_planes(g));
  at.v = buffers.take(at.key_blocks * bytes_of_planes(g));
  at.queries = buffers.take(at.query_blocks * kQueryBlockBytes);
  at.keys = buffers.take(at.key_blocks * kKeyBlockBytes);
  at.claims = buffers.take(sizeof(int));
  at.total = buffers.total;
  return at;
}

Seconds predicted(const Gradients& g, const Device& device) {
  constexpr AtenGradientsModel theirs = kAtenGradients;
  const Problem& p = g.p;
  const int index = compiled_depth(g) / 64 - 1;
  const double heads = double(p.batches) * p.heads, slower = slower_than_h200(device);
  const int64_t query_blocks = ceil_div(p.queries, kRows), key_blocks = ceil_div(p.keys, kRows);
  const double ours = stay_in_shared_memory(g, device) ? resident_seconds(g, device) : streamed_seconds(g, device);
  const bool masked = p.mask.kind != MaskKind::kNone;
  const double their_work =
      pairs(p, query_blocks, key_blocks) * theirs.together[index] + heads * double(key_blocks) * theirs.tile;
  const double their_time = slower * (masked ? theirs.masked : 1) *
                            std::max(their_work / device.sms, double(query_blocks) * theirs.alone[index] + theirs.tile);
  return {ours, theirs.launch + their_time};
}

}  // namespace sgemm::attention::backward
