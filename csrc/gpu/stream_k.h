// Stream-K: persistent blocks share tiles. All blocks have equally many whole tiles. The k-steps of the remaining tiles
// are numbered consecutively and divided evenly. So a block has the end of one tile, the start of another, or both. No
// block waits for another: the last to arrive adds the parts up (fixup.cuh).
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
  int steps;    // k-steps of a tile
  int whole;    // number of whole tiles; the tiles after them are shared
  int sharing;  // number of blocks with shared tiles; 0 if no tile is shared

  SGEMM_HOST_DEVICE int left() const { return tiles - whole; }
  SGEMM_HOST_DEVICE int shared_steps() const { return left() * steps; }
  // Number of slots for parts of a tile's sums: each block writes parts of up to two tiles, and tiles have no slot in
  // common.
  SGEMM_HOST_DEVICE int parts() const { return sharing ? sharing + left() : 0; }
};

inline constexpr int64_t kLeastShare = 6;  // minimum k-steps per sharing block

// Shares the remaining tiles among blocks of at least kLeastShare steps each, if that makes more blocks than tiles.
inline StreamK stream_k(int64_t tiles, int64_t steps, int sms) {
  const int64_t left = tiles % sms, sharing = std::min<int64_t>(left * steps / kLeastShare, sms);
  StreamK deal = {static_cast<int>(tiles), static_cast<int>(steps), static_cast<int>(tiles), 0};
  if (sharing <= left || left * steps > INT32_MAX) return deal;
  deal.whole -= static_cast<int>(left);
  deal.sharing = static_cast<int>(sharing);
  return deal;
}

// Layout of the workspace for shared tiles.
struct StreamKLayout {
  size_t arrived;  // (shared tiles) uint32; number of parts that have arrived
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
  int index, count;  // this part's number, and the number of parts of the tile
  int place;         // slot of the tile's first part
};

}  // namespace sgemm
