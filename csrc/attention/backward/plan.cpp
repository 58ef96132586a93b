// The workspace of attention's gradients, and what they are predicted to take.
#include <algorithm>
#include <cmath>

#include "../../models/attention.h"
#include "../../problem/buffers.h"
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
  const double bandwidth = device.bandwidth_gbs * 1e9;
  const double slower = slower_than_h200(device);
  const bool masked = p.mask.kind != MaskKind::kNone;
  const int64_t query_blocks = ceil_div(p.queries, kRows), key_blocks = ceil_div(p.keys, kRows);
  const int64_t query_tiles = ceil_div(p.queries, kTile), key_tiles = ceil_div(p.keys, kTile);
  // Tiles share the thread blocks, and none is finished before the longest tile of keys.
  const double factor = slower * (masked ? ours.masked[index] : 1);
  const double tiles = groups * double(key_tiles) + heads * double(query_tiles);
  const double work = factor * (pairs(p, key_tiles, query_blocks) * ours.keys[index] +
                                pairs(p, query_tiles, key_blocks) * ours.queries[index]);
  const double longest = factor * ours.keys[index] * double(query_blocks) * heads / groups + slower * ours.tile;
  const double compute = std::max((work + tiles * slower * ours.tile) / device.sms, longest);
  const double read =
      4 * (heads * p.queries * (p.depth + 2.0 * p.value_depth) + groups * p.keys * (p.depth + 1.0 * p.value_depth));
  const double planes = 8.0 * kRows * compiled_depth(g) * (heads * double(query_blocks) + groups * double(key_blocks));
  return ours.launch + compute + (read + planes) / (ours.bandwidth * bandwidth);
}

// Thread blocks of one SM take two heads at a time.
double resident_seconds(const Gradients& g, const Device& device) {
  const bool masked = g.p.mask.kind != MaskKind::kNone;
  const int64_t rounds = ceil_div(ceil_div(int64_t{g.p.batches} * g.p.heads, 2), device.sms);
  return kGradients.launch_resident +
         slower_than_h200(device) * double(rounds) * kGradients.two_heads * (masked ? kGradients.masked[0] : 1);
}

}  // namespace

bool stay_in_shared_memory(const Gradients& g, const Device& device) {
  const Problem& p = g.p;
  return p.queries <= kRows && p.keys <= kRows && compiled_depth(g) == 64 && p.heads == p.groups &&
         resident_seconds(g, device) < streamed_seconds(g, device);
}

Layout layout(const Gradients& g, const Device& device) {
  const Problem& p = g.p;
  Layout at = {};
  if (stay_in_shared_memory(g, device)) return at;
  Buffers buffers;
  at.query_blocks = int64_t{p.batches} * p.heads * ceil_div(p.queries, kRows);
  at.key_blocks = int64_t{p.batches} * p.groups * ceil_div(p.keys, kRows);
  const int64_t plane_bytes = 4 * kRows * compiled_depth(g);
  at.q = buffers.take(at.query_blocks * plane_bytes);
  at.grad = buffers.take(at.query_blocks * plane_bytes);
  at.k = buffers.take(at.key_blocks * plane_bytes);
  at.v = buffers.take(at.key_blocks * plane_bytes);
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
