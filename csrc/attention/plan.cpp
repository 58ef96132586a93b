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
  if (converts_own(p)) return at;
  at.k = buffers.take(at.blocks * kBlockBytes);
  at.v = buffers.take(at.blocks * kBlockBytes);
  at.k_scales = buffers.take(at.blocks * kScaleBytes);
  at.v_scales = buffers.take(at.blocks * kScaleBytes);
  at.flag_count = 1 + 2 * at.blocks;
  at.flags = buffers.take(at.flag_count * sizeof(uint32_t));
  at.total = buffers.total;
  return at;
}

Seconds predicted(const Problem& p, const Device& device) {
  constexpr AttentionModel ours = kAttention;
  constexpr AtenAttentionModel theirs = kAtenAttention;
  const int index = compiled_depth(p) / 32 - 1, block = keys_of_block(compiled_depth(p));
  const bool masked = p.mask.kind != MaskKind::kNone;
  const double heads = double(p.batches) * p.heads, groups = double(p.batches) * p.groups;
  const double bandwidth = device.bandwidth_gbs * 1e9;
  // Both kernels multiply on tensor cores.
  const double slower = kH200.clock_ghz / (device.clock_ghz * device.tensor_rate);
  const double blocks = double(ceil_div(p.keys, block)),
               of_heads = heads * double(blocks_read(p, kQueriesOfTile, block));
  const double tiles = std::ceil(heads * double(ceil_div(p.queries, kQueriesOfTile)) / device.sms);
  // All tiles read equally many blocks, or causal ones share them evenly.
  const double read = p.causal ? std::max(of_heads / device.sms, blocks) : tiles * blocks;
  const double keys = 4.0 * groups * p.keys * (p.depth + p.value_depth), planes = 2 * groups * blocks * kBlockBytes;
  const double rows = 4.0 * heads * p.queries * (p.depth + p.value_depth);
  const double compute =
      slower *
      (read * ours.block[index] * (masked ? ours.masked : 1) * (p.causal ? ours.causal : 1) + tiles * ours.tile);
  // Blocks that a thread block converts, one after the other, while others compute.
  const bool own = converts_own(p);
  const double converted = own ? 2 * tiles * blocks : 2 * groups * blocks / device.sms;
  const double convert = slower * (converted * ours.convert[index] + ours.tile);
  const double time = std::max(compute + (own ? 0 : slower * converted * ours.beside), convert);
  const double memory = (planes + rows) / (ours.bandwidth * bandwidth);

  const double their_blocks = double(ceil_div(p.keys, kTheirs)), factor = slower * (masked ? theirs.masked : 1);
  const double their_tiles = heads * double(ceil_div(p.queries, kTheirs)) / device.sms;
  const double their_read = heads * double(blocks_read(p, kTheirs, kTheirs)) / device.sms;
  const double alone = their_blocks * theirs.alone[index] * factor;
  const double together = their_read * theirs.together[index] * factor + slower * their_tiles * theirs.tile;
  const double their_time =
      std::max({(heads / groups * keys + rows) / (theirs.bandwidth * bandwidth), alone, together});
  return {(own ? ours.launch_own : ours.launch) + std::max(time, memory), theirs.launch + their_time};
}

}  // namespace sgemm::attention
