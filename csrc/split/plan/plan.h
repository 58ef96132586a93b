// How a split product is cut up: slices of k, clusters, pieces that fit the workspace. Pure host code.
#pragma once
#include <functional>

#include "../../problem/pieces.h"

namespace sgemm::split {

inline constexpr int kTile = 128;  // rows of a panel; the most rows and columns of a block's tile of C
inline constexpr int kStep = 32;   // of k per stage of the product
inline constexpr int kChain = 32;  // of k that are added up in one chain of FMAs, where an element is computed again
// The promotion interval: so much of k is added up within the tensor cores. The longer one is for problems of more than
// kManySteps whose k exceeds it, where additions would cost time; and for batch-invariant ones.
inline constexpr int kWindow = 32, kLongWindow = 64;

// Steps of 128 x 128 x kStep, beyond which the chip's power is the limit, so that each promotion costs time.
inline constexpr int64_t kManySteps = 10000;
inline constexpr int kStreamedSteps = 2;  // of a streamed operand, that are split and multiplied together
inline constexpr int kMaxSlice = 8192;    // of k, that the splitting pass holds in shared memory
inline constexpr int kSumWords = kTile / 2, kPartWords = kTile + kSumWords;  // rows' sums, and those behind their words
inline constexpr int kRowBytes = kStep * 4;                                  // of a pair of planes: a row of a panel
inline constexpr int kPanelBytes = kTile * kRowBytes;
inline constexpr int kHalfPlaneBytes = kPanelBytes / 4;  // 64 rows of a plane
inline constexpr int kLowerEntries = 64;                 // of a panel: whether its lower planes hold anything

// How an element is written; format.cuh has the rest.
struct Fp16x3;
struct Bf16x6;
template <class F>
inline constexpr int kPairs = 1;  // of 16-bit planes per operand
template <>
inline constexpr int kPairs<Bf16x6> = 2;

// The properties in which the family's rows differ.
struct Shape {
  int pairs;           // of 16-bit planes per operand
  int products;        // 16-bit products for one of float32
  bool streams;        // A is split by the product's kernel, not by a pass
  int tile_m, tile_n;  // of a block's tile of C: 128 x 128 or 128 x 64

  constexpr bool half() const { return tile_n < kTile; }
  // So many steps of k are multiplied together: slices and parts are whole multiples.
  constexpr int together() const { return streams ? kStreamedSteps : 1; }
  constexpr int64_t steps(int64_t k) const {
    const int64_t groups = ceil_div(k, together() * kStep);
    return (groups > 0 ? groups : 1) * together();
  }
};

struct SplitPlan {
  int64_t m, n, batch;  // of a piece: pieces run one after the other in the same workspace; none begins within a group
                        // of the batch and ends in another
  int64_t slice;        // of k: slices are products of their own, added up in order at the end
  int64_t slices;       // a piece; a problem with more is added up piece by piece
  int cluster;          // blocks that share a tile, each with a part of k
  double seconds;       // predicted
  bool packed_b;        // B's planes are there already

  // Tiles that are left over when all blocks have had equally many, and the blocks that share each of them; 0 and 1 if
  // none is shared.
  int left = 0, parts = 1;

  bool splits_b = false;         // where A is streamed: the product's kernel splits B as well
  bool triangle = false;         // of A A^T: A alone is split, and D's tiles below the diagonal are copies
  bool batch_invariant = false;  // nothing that decides an element's bits depends on m, the batch or other rows' data

  int64_t k() const { return slice * slices; }  // of a piece
  Pieces pieces(const Problem& p) const { return {m, n, k(), batch, p.k, 1, k() >= p.k || adds_up_in_d(p)}; }
};

// The fastest of the ways to cut `p` up, as predicted, within `limit` bytes. With a packed B it is cut along m alone.
SplitPlan plan(const Shape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b = false);
// All ways that are considered.
void each_plan(const Shape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b,
               const std::function<void(const SplitPlan&)>& visit);

// In slices and pieces of k that depend on k alone, and whole tiles, so that the order of every sum does; cut along m,
// n and the batch so that it fits.
SplitPlan invariant_plan(const Shape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b);

// A packed B of k x n, as every product with it reads it: first the planes, then the words, the guard's records and
// whether there is anything in lower planes.
struct PackedLayout {
  int64_t slice, slices;               // of k
  size_t words, guards, lower, total;  // bytes
};
PackedLayout packed_layout(const Shape& shape, int64_t k, int64_t n);

// How many matrices of an operand with `entries` of the batch are split: one, if all share it. But slices have one
// each, also where all would read the same elements: the last may be shorter.
inline int64_t split_matrices(const ConstMatrix& x, int64_t entries, const SplitPlan& plan) {
  return plan.slices > 1 ? entries : matrices(x, entries);
}

// Where a piece's buffers lie in the workspace.
struct Layout {
  size_t planes_a, planes_b;  // panels of kPanelBytes: (batch or 1, rows of panels, steps, pairs)
  size_t words_a, words_b;    // a row's or column's scale and threshold: (batch or 1, rows of panels, 128) uint32
  size_t guards_a, guards_b;  // what else the guard knows of it, likewise
  size_t lower_a, lower_b;    // (batch or 1, rows of panels, kLowerEntries) bool
  size_t marks;               // (tiles, 4, 8) uint32
  size_t masks;               // (tiles, 4, 256) uint16
  size_t tile_words;          // (tiles, 2, 128) uint32
  // Of tiles that are left over: (tiles, parts, tile's m, n) float, (tiles, parts, kPartWords) uint32 where A has no
  // planes, and (tiles) uint32.
  size_t part_sums, part_words, arrived;
  size_t partials;  // (slices, m, n) float, if there are several slices
  size_t total;
};
Layout layout(const Shape& shape, const Problem& piece, const SplitPlan& plan);

// Where in the workspace pieces are added up, behind what each of them needs.
size_t pieces_at(const Shape& shape, const Problem& p, const SplitPlan& plan);

// Bytes of the workspace in which all of a problem's pieces run.
size_t workspace(const Shape& shape, const Problem& p, const SplitPlan& plan);

}  // namespace sgemm::split
