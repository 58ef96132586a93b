// Stream-K: how persistent blocks share tiles. Each block has equally many whole ones; the steps of k of those that are
// left over are counted through and dealt out evenly, so that a block has the end of a tile, or the begin of one, or
// both. No block waits for another: the last to come adds the parts up (fixup.cuh).
//
// Source: Osama et al., Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the
// GPU, PPoPP 2023.
#pragma once
#include <algorithm>
#include <cstdint>

#include "../problem/buffers.h"
#include "../problem/problem.h"

namespace sgemm {

struct StreamK {
  int tiles;
  int steps;    // of k, of each
  int whole;    // tiles; those behind are shared
  int sharing;  // blocks; 0 if no tile is shared

  SGEMM_HOST_DEVICE int left() const { return tiles - whole; }
  SGEMM_HOST_DEVICE int shared_steps() const { return left() * steps; }
  // Of a tile's sums: each block writes its part of up to two tiles, and no two tiles have a part in common.
  SGEMM_HOST_DEVICE int parts() const { return sharing ? sharing + left() : 0; }
};

inline constexpr int64_t kLeastShare = 6;  // steps of k that a block is worth being asked for

// Tiles left over are shared by as many blocks as have so many steps each, if those are more than the tiles.
inline StreamK stream_k(int64_t tiles, int64_t steps, int sms) {
  const int64_t left = tiles % sms, sharing = std::min<int64_t>(left * steps / kLeastShare, sms);
  StreamK deal = {static_cast<int>(tiles), static_cast<int>(steps), static_cast<int>(tiles), 0};
  if (sharing <= left || left * steps > INT32_MAX) return deal;
  deal.whole -= static_cast<int>(left);
  deal.sharing = static_cast<int>(sharing);
  return deal;
}

// Where shared tiles lie in the workspace.
struct StreamKLayout {
  size_t arrived;  // (tiles left over) uint32: their parts that are there
  size_t parts;    // (parts(), sums of a tile) float
  size_t total;
};
inline StreamKLayout stream_k_layout(const StreamK& deal, int64_t sums) {
  Buffers buffers;
  const size_t arrived = buffers.take(int64_t{4} * deal.left());
  const size_t parts = buffers.take(4 * deal.parts() * sums);
  return {arrived, parts, buffers.total};
}

// A tile, or a part of one: steps [first, first + steps) of its k.
struct WorkTile {
  int tile, first, steps;
  int index, count;  // of the tile's parts
  int place;         // of the tile's first part among all
};

}  // namespace sgemm
