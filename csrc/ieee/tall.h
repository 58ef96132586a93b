// The row for products with many rows, of few columns and a short k: how they are cut up. Pure host code.
#pragma once
#include "../problem/pieces.h"

namespace sgemm::ieee {

// A warp's tile; its lanes are 8 x 4.
struct TallTile {
  static constexpr int tm = 8;
  int tn;      // thread tile
  int stages;  // of a warp's ring
  int blocks;  // that an SM has registers for

  static constexpr int rows() { return 8 * tm; }
  constexpr int cols() const { return 4 * tn; }
};
inline constexpr TallTile kTallTiles[] = {{1, 3, 4}, {2, 3, 4}, {4, 3, 4}, {8, 2, 3}};
inline constexpr int kTallCount = sizeof kTallTiles / sizeof kTallTiles[0];

struct Tall {
  static constexpr TallTile kLargest = kTallTiles[kTallCount - 1];
  static constexpr const char* kIdea = "B waits in shared memory, each warp streams rows of A past it";
  static constexpr const char* kSource = "ieee/tall.cu";
  static constexpr int kThreads = 128, kWarps = kThreads / 32;
  static constexpr int BM = TallTile::rows() * kWarps, BN = kLargest.cols(), BK = 16;
  static constexpr int TM = TallTile::tm, TN = kLargest.tn;
  static constexpr bool kActivates = false;  // sums stay in registers, for each of which the code would be repeated
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kMinArch = 90;  // shared memory
  // Long sums drift: of a longer k, pieces are added up. Two may be as long; with more, a result's error is the smaller
  // the shorter they are.
  static constexpr int64_t kMostK = 128, kPieceK = 96;

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static double error_bound(int64_t k);                                            // in units of 2^-24 |A||B|
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_CUDA is defined
};

// How a piece is cut up: all of them alike.
struct TallPiece {
  int tile;        // of kTallTiles
  bool swapped;    // the transposed product, D^T = B^T A^T
  int64_t groups;  // blocks that share the rows of one panel of B
  double seconds;  // predicted
};
struct TallPlan {
  Pieces pieces;
  TallPiece piece;
};

// How a warp stores its tile: one by one; rows or columns of neighbours, one by one; as many at once as a thread has
// side by side.
enum class TallStores { kSingles, kRows, kColumns, kAlongN, kAlongM };
TallStores tall_stores(int tile, const Problem& p);  // of a problem that is not swapped

// Floats of a part of a warp's tile on its way to D: eight rows, or 32 rows of four columns.
inline constexpr int kTallPitch = 40;
constexpr int tall_staged(int cols) { return 8 * cols > 4 * kTallPitch ? 8 * cols : 4 * kTallPitch; }

// A block's shared memory: B's panel, and each warp's ring and a part of its tile.
int tall_bytes(int tile, bool a_along_k, int64_t k);

}  // namespace sgemm::ieee
