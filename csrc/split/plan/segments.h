// The rule by which batch-invariant products cut k into segments. The sum of a segment is complete before it is added
// to the tile's, in order of k.
//
// Idea:   a product of few rows is fast only if the blocks of the whole GPU share a tile's k. An element has the same
//         bits in a product of many rows only if that adds up the same parts. So every batch-invariant product has the
//         segments that few rows need. Their number depends on n and k, which belong to the weight. It does not depend
//         on m, on the batch or on the GPU.
#pragma once
#include <algorithm>

#include "../../problem/problem.h"
#include "sizes.h"

namespace sgemm::split {

inline constexpr int64_t kMostParts = 132;  // segments of all tiles of few rows: a block for each SM of an H100 or H200
// Steps of k. In a product of many rows a block adds each segment to a total, which shorter segments would make slow.
inline constexpr int64_t kLeastSegment = 8;

// Returns the steps of k of a segment, for `n` columns and `slices` slices of `steps` steps each. The number is even,
// so that no window of two steps is cut. It is `steps` or more if k has one segment.
constexpr int segment_steps(int64_t n, int64_t slices, int64_t steps) {
  const int64_t tiles = std::max<int64_t>(1, ceil_div(n, kTile) * slices);
  const int64_t wanted = std::max<int64_t>(1, kMostParts / tiles);
  const int64_t even = ceil_div(ceil_div(steps, wanted), 2) * 2;
  return static_cast<int>(std::max(kLeastSegment, even));
}

}  // namespace sgemm::split
