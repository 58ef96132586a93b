// The workspace of attention's gradients, and what they are predicted to take.
#include <algorithm>
#include <cmath>

#include "../../models/attention.h"
#include "../../problem/buffers.h"
#include "gradients.h"

namespace sgemm::attention::backward {
namespace {

constexpr int kTheirs = 64;  // queries, and keys, of a block of PyTorch's kernel

// Pairs of blocks of `tile` rows and `block` columns, of all heads. Causal ones are about half.
double pairs(const Problem& p, int tile, int block) {
  const double all = double(p.batches) * p.heads * double(ceil_div(p.queries, tile)) * double(ceil_div(p.keys, block));
  const double share = double(std::min(p.queries, p.keys)) / p.queries;
  return p.causal ? all * (1 - share / 2) + all / double(ceil_div(p.keys, block)) : all;
}

}  // namespace

Layout layout(const Gradients& g) {
  const Problem& p = g.p;
  Layout at = {};
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
  at.total = buffers.total;
  return at;
}

Seconds predicted(const Gradients& g, const Device& device) {
  constexpr GradientsModel ours = kGradients;
  constexpr AtenGradientsModel theirs = kAtenGradients;
  const Problem& p = g.p;
  const int index = compiled_depth(g) / 64 - 1;
  const double heads = double(p.batches) * p.heads, groups = double(p.batches) * p.groups;
  const double bandwidth = device.bandwidth_gbs * 1e9, slower = kH200.clock_ghz / device.clock_ghz;
  const double masked = p.mask.kind != MaskKind::kNone ? ours.masked : 1;
  // Blocks that the busiest thread block multiplies. Tiles are equal, or long ones come first.
  const auto most = [&](double tiles, double pairs_of_all) {
    const double rounds = std::ceil(tiles / device.sms), each = pairs_of_all / tiles;
    return p.causal ? std::max(pairs_of_all / device.sms, 2 * each) : rounds * each;
  };
  const double key_tiles = groups * double(ceil_div(p.keys, kTile)),
               query_tiles = heads * double(ceil_div(p.queries, kTile));
  const double of_keys = most(key_tiles, pairs(p, kRows, kTile)),
               of_queries = most(query_tiles, pairs(p, kTile, kRows));
  const double bytes = 4 * (heads * p.queries * (4.0 * p.depth + 5.0 * p.value_depth) +
                            groups * p.keys * (4.0 * p.depth + 4.0 * p.value_depth));
  const double time = slower * masked * (of_keys * ours.keys[index] + of_queries * ours.queries[index]) +
                      slower * ours.tile * (std::ceil(key_tiles / device.sms) + std::ceil(query_tiles / device.sms));

  const double their_pairs = pairs(p, kTheirs, kTheirs);
  const double alone = double(ceil_div(p.queries, kTheirs)) * theirs.alone[index];
  const double together = their_pairs / device.sms * theirs.together[index];
  return {ours.launch + time + bytes / (ours.bandwidth * bandwidth),
          theirs.launch + slower * (p.mask.kind != MaskKind::kNone ? theirs.masked : 1) * std::max(alone, together)};
}

}  // namespace sgemm::attention::backward
