// The workspace of attention, and what it is predicted to take.
#include <algorithm>
#include <cmath>

#include "../models/attention.h"
#include "../problem/buffers.h"
#include "attention.h"

namespace sgemm::attention {
namespace {

constexpr int kTheirs = 64;  // queries of a tile, and keys of a block, of PyTorch's kernel

// Blocks of keys that the tiles of a head read.
int64_t blocks_read(const Problem& p, int tile, int block) {
  const int64_t tiles = ceil_div(p.queries, tile), blocks = ceil_div(p.keys, block);
  if (!p.causal) return tiles * blocks;
  int64_t sum = 0;
  for (int64_t t = 1; t <= tiles; ++t) sum += std::min(blocks, ceil_div(t * tile, block));
  return sum;
}

}  // namespace

Layout layout(const Problem& p) {
  Layout at = {};
  Buffers buffers;
  at.blocks = int64_t{p.batches} * p.groups * ceil_div(p.keys, keys_of_block(compiled_depth(p)));
  at.k = buffers.take(at.blocks * kBlockBytes);
  at.v = buffers.take(at.blocks * kBlockBytes);
  at.k_scales = buffers.take(at.blocks * kScaleBytes);
  at.v_scales = buffers.take(at.blocks * kScaleBytes);
  at.total = buffers.total;
  return at;
}

Seconds predicted(const Problem& p, const Device& device) {
  constexpr AttentionModel ours = kAttention;
  constexpr AtenAttentionModel theirs = kAtenAttention;
  const int index = compiled_depth(p) / 32 - 1, block = keys_of_block(compiled_depth(p));
  const bool masked = p.mask.kind != MaskKind::kNone;
  const double heads = double(p.batches) * p.heads, groups = double(p.batches) * p.groups;
  const double bandwidth = device.bandwidth_gbs * 1e9, slower = kH200.clock_ghz / device.clock_ghz;
  const double blocks = double(ceil_div(p.keys, block)),
               of_heads = heads * double(blocks_read(p, kQueriesOfTile, block));
  const double tiles = std::ceil(heads * double(ceil_div(p.queries, kQueriesOfTile)) / device.sms);
  // All tiles read equally many blocks, or causal ones share them evenly.
  const double read = p.causal ? std::max(of_heads / device.sms, blocks) : tiles * blocks;
  const double keys = 4.0 * groups * p.keys * (p.depth + p.value_depth), planes = 2 * groups * blocks * kBlockBytes;
  const double rows = 4.0 * heads * p.queries * (p.depth + p.value_depth);
  const double compute = slower * (read * ours.block[index] * (masked ? ours.masked : 1) + tiles * ours.tile);
  const double convert = (keys + planes) / (ours.bandwidth * bandwidth),
               memory = (planes + rows) / (ours.bandwidth * bandwidth);

  const double their_blocks = double(ceil_div(p.keys, kTheirs)), factor = slower * (masked ? theirs.masked : 1);
  const double their_tiles = heads * double(ceil_div(p.queries, kTheirs)) / device.sms;
  const double their_read = heads * double(blocks_read(p, kTheirs, kTheirs)) / device.sms;
  const double alone = their_blocks * theirs.alone[index] * factor;
  const double together = their_read * theirs.together[index] * factor + slower * their_tiles * theirs.tile;
  const double their_time =
      std::max({(heads / groups * keys + rows) / (theirs.bandwidth * bandwidth), alone, together});
  return {ours.launch + convert + std::max(compute, memory), theirs.launch + their_time};
}

}  // namespace sgemm::attention
