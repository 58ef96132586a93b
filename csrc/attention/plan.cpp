// The workspace of attention, and what it is predicted to take.
#include <algorithm>
#include <cmath>

#include "../problem/buffers.h"
#include "attention.h"

namespace sgemm::attention {
namespace {

// Quantities of both kernels, fitted by hand to times of 44 problems on an NVIDIA H200 (PyTorch 2.11, 2026-11-29); four
// values are of the depths 32, 64, 96 and 128. Predictions are within 10 % of most times.
constexpr double kLaunch = 3.5e-6, kTile = 2.0e-6;             // seconds: both kernels; ends of a tile of queries
constexpr double kBlock[] = {1.5e-6, 2.5e-6, 1.7e-6, 2.1e-6};  // seconds of a tile's block of keys
constexpr double kMasked = 1.45, kShare = 0.94;                // factor with a mask; share of a copy's bandwidth
// PyTorch's memory-efficient kernel has tiles of 64 queries and blocks of 64 keys.
constexpr int kTheirs = 64;
constexpr double kTheirLaunch = 3.9e-6, kTheirTile = 0.6e-6;
constexpr double kAlone[] = {3.8e-6, 6.3e-6, 4.9e-6, 6.8e-6};     // seconds of a block of keys of a single tile
constexpr double kTogether[] = {3.6e-6, 4.6e-6, 5.8e-6, 6.2e-6};  // of an SM that has many tiles, each
constexpr double kTheirMasked = 1.2, kTheirShare = 0.85;
constexpr double kClock = 1.98;  // GHz, of all seconds above

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
  const int index = compiled_depth(p) / 32 - 1, block = keys_of_block(compiled_depth(p));
  const bool masked = p.mask.kind != MaskKind::kNone;
  const double heads = double(p.batches) * p.heads, groups = double(p.batches) * p.groups;
  const double bandwidth = device.bandwidth_gbs * 1e9, slower = kClock / device.clock_ghz;
  const double blocks = double(ceil_div(p.keys, block)),
               of_heads = heads * double(blocks_read(p, kQueriesOfTile, block));
  const double tiles = std::ceil(heads * double(ceil_div(p.queries, kQueriesOfTile)) / device.sms);
  // All tiles read equally many blocks, or causal ones share them evenly.
  const double read = p.causal ? std::max(of_heads / device.sms, blocks) : tiles * blocks;
  const double keys = 4.0 * groups * p.keys * (p.depth + p.value_depth), planes = 2 * groups * blocks * kBlockBytes;
  const double rows = 4.0 * heads * p.queries * (p.depth + p.value_depth);
  const double compute = slower * (read * kBlock[index] * (masked ? kMasked : 1) + tiles * kTile);
  const double convert = (keys + planes) / (kShare * bandwidth), memory = (planes + rows) / (kShare * bandwidth);

  const double their_blocks = double(ceil_div(p.keys, kTheirs)), factor = slower * (masked ? kTheirMasked : 1);
  const double their_tiles = heads * double(ceil_div(p.queries, kTheirs)) / device.sms;
  const double their_read = heads * double(blocks_read(p, kTheirs, kTheirs)) / device.sms;
  const double alone = their_blocks * kAlone[index] * factor;
  const double together = their_read * kTogether[index] * factor + slower * their_tiles * kTheirTile;
  const double theirs = std::max({(heads / groups * keys + rows) / (kTheirShare * bandwidth), alone, together});
  return {kLaunch + convert + std::max(compute, memory), kTheirLaunch + theirs};
}

}  // namespace sgemm::attention
