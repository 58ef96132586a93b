// The plan of a split product: slices of k, clusters, and pieces that fit the workspace. Pure host code.
#pragma once
#include <functional>
#include <optional>

#include "../../problem/pieces.h"
#include "sizes.h"

namespace sgemm::split {

// The properties in which the family's rows differ.
struct RowShape {
  int pairs;           // pairs of 16-bit planes per operand
  int products;        // 16-bit products for one of float32
  bool on_the_fly;     // the product kernel splits A, or both operands; the convert kernel doesn't
  int tile_m, tile_n;  // a block's tile of C: 128 x 128 or 128 x 64
  bool few = false;    // the product's columns are few: narrow() of them are multiplied

  constexpr bool half() const { return tile_n < kTile; }
  // Steps of k that are multiplied together. Slices are whole multiples of them.
  constexpr int together() const { return on_the_fly ? kOnTheFlySteps : 1; }
  constexpr int64_t steps(int64_t k) const {
    const int64_t groups = ceil_div(k, together() * kStep);
    return (groups > 0 ? groups : 1) * together();
  }
};

// Returns the columns that a tile of few columns multiplies: 8, 16, 32 or 64. Planes of B that are not along k have
// blocks of 64 columns.
inline int narrow(const Problem& p) {
  if (!runs_along_k(p.b.row, p.b.col)) return 64;
  return p.n <= 8 ? 8 : p.n <= 16 ? 16 : p.n <= 32 ? 32 : 64;
}

// Offsets of the planes of an operand and of what belongs to them, bytes. Comments give shapes; job.h describes the
// contents.
struct PlanesLayout {
  size_t planes;      // panels of kPanelBytes: (batch or 1, rows of panels, steps, pairs)
  size_t row_scales;  // scales and thresholds of rows or columns: (batch or 1, rows of panels, 128) uint32
  size_t row_stats;   // the guard's row or column statistics, same shape
  size_t lower;       // (batch or 1, rows of panels, kLowerEntries) bool
};

// Offsets of a piece's buffers in the workspace, bytes.
struct Layout {
  PlanesLayout a, b;
  size_t refused;             // (tiles, kTileCluster, 8) uint32
  size_t masks;               // (tiles, tile_n / 32, 256) uint16
  size_t tile_scales;         // (tiles, 2, 128) uint32
  size_t part_sums, arrived;  // for tiles that are left over: (tiles, parts, tile's m, n) float; (tiles) uint32
  size_t partials;            // (slices, m, n) float, if there are several slices
  size_t total;
};

struct SplitPlan {
  int64_t m, n, batch;  // a piece; pieces run one after the other in the same workspace. No piece begins within one
                        // group of the batch and ends in another.
  int64_t slice;        // k of a slice; slices are separate products, added up in order at the end
  int64_t slices;       // slices of a piece; a problem with more slices is added up piece by piece
  int cluster;          // blocks that share a tile, each with a part of k
  double seconds;       // predicted
  bool packed_b;        // B's planes exist already

  bool few_rows = false;  // a batch-invariant product by the kernel of few rows
  int segment = 0;        // batch-invariant: steps of k of a segment (segments.h)
  // Number of tiles left over after all blocks have had equally many, and of blocks that share each of these tiles. The
  // values are 0 and 1 if no tile is shared.
  int left = 0, parts = 1;

  bool packed_a = false;         // A's planes exist already
  bool splits_b = false;         // if A is split on the fly: B is split on the fly as well
  bool triangle = false;         // A A^T: only A is split, and D's tiles below the diagonal are copies
  bool batch_invariant = false;  // m, the batch and other rows' data don't affect an element's bits

  Layout layout = {};  // of the largest piece; smaller pieces use a part of each buffer

  int64_t k() const { return slice * slices; }  // k of a piece
  Pieces pieces(const Problem& p) const { return {m, n, k(), batch, p.k, 1, k() >= p.k || adds_up_in_d(p)}; }
};

// Returns the plan of `p` with the least predicted time whose workspace has at most `limit` bytes. With a packed B,
// only m is cut into pieces.
SplitPlan plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b = false);
// Calls `visit` with every plan that plan() considers.
void each_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b,
               const std::function<void(const SplitPlan&)>& visit);

// The same for products of few columns, whose larger operand is A. Either operand may be packed.
struct PackedOperands {
  bool a, b;
};
void each_few_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit,
                   const PackedOperands& packed, const std::function<void(const SplitPlan&)>& visit);

// Returns a plan whose order of every sum depends only on n and k: its segments, slices and pieces of k do, and no tile
// is shared. The plan cuts m, n and the batch so that it fits `limit` bytes.
SplitPlan invariant_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit, bool packed_b);
// Returns the plan of the kernel of few rows with the same order of every sum, or nothing if the problem does not fit
// `limit` bytes, or has too many parts. `p`: the transposed problem, whose A is the weight and whose B has few columns.
std::optional<SplitPlan> invariant_few_plan(const RowShape& shape, const Problem& p, const Device& device, size_t limit,
                                            bool packed_a);

// Layout of a packed B (k x n), which all products with this B read.
struct PackedLayout {
  int64_t slice, slices;  // k of a slice; number of slices
  PlanesLayout b;
  size_t total;
};
PackedLayout packed_layout(const RowShape& shape, int64_t k, int64_t n);

// Returns how many matrices of an operand are split for `entries` batch entries: one if all entries share the matrix.
// Slices always have a matrix each, because the last slice may be shorter.
inline int64_t split_matrices(const ConstMatrix& x, int64_t entries, const SplitPlan& plan) {
  return plan.slices > 1 ? entries : matrices(x, entries);
}

// Returns the layout of a piece. A launch reads SplitPlan::layout instead.
Layout layout(const RowShape& shape, const Problem& piece, const SplitPlan& plan);

// Returns the offset in the workspace, behind the buffers of a piece, at which pieces are added up.
size_t pieces_at(const SplitPlan& plan);

// Returns the bytes of workspace that all pieces of a problem share.
size_t workspace(const Problem& p, const SplitPlan& plan);

}  // namespace sgemm::split
