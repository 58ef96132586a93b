// The split family's row of the table for products with many rows, few columns and a short k. Pure host code.
#pragma once
#include "../../problem/pieces.h"
#include "../bound.h"
#include "tall_tile.h"

namespace sgemm::split {

struct TallProduct {
  static constexpr TallTile kLargest = kTallTiles[kTallCount - 1];
  static constexpr const char* kSource = "split/launch/tall_sm90a.cu";
  static constexpr int kThreads = 32 * kLargest.warps;
  static constexpr int BM = TallTile::kRows * kLargest.warps, BN = TallTile::kCols, BK = TallTile::kStep, TM = 2,
                       TN = 4;
  static constexpr bool kActivates = true, kTakesPlanes = false;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;
  static constexpr int64_t kAutoFrom = 0;

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_SM90A is defined

  // Each piece adds its corrections separately: one more rounding.
  static double error_bound(int64_t k) {
    return Bound<Fp16x3>::of(k, kWindow) + static_cast<double>(ceil_div(k, kLargest.depth));
  }
};

// The plan of a piece.
struct TallPiece {
  uint8_t tile;  // index in kTallTiles
  bool swapped;  // solves the transposed product, D^T = B^T A^T
  TallReads reads;
  TallStores stores;
  int cols;        // columns of a panel of B, in whole groups of 16
  int warps;       // warps of a block
  int groups;      // blocks that share the rows of one panel
  double seconds;  // predicted time
};
TallPiece tall_piece(const Problem& p, const Device& device);  // the plan that is predicted to be fastest

// The last piece of k may be shorter, and have another tile. Parts at D's edges, which a small workspace makes, are
// planned at their launch.
struct TallPlan {
  Pieces pieces;
  TallPiece piece, last;
};

// Returns the bytes of TallJob::lists, an entry for each tile of each panel, rounded up to align the buffer after them.
size_t tall_list_bytes(const Problem& p);

}  // namespace sgemm::split
