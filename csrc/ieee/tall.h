// Row for products with many rows, few columns and a short k: the choice of plans. Pure host code.
#pragma once
#include "../problem/pieces.h"

namespace sgemm::ieee {

// A warp's tile; the warp's lanes form a grid of 8 x 4.
struct TallTile {
  static constexpr int tm = 8;
  int tn;      // thread tile
  int stages;  // stages of a warp's ring
  int blocks;  // blocks per SM that registers allow

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
  static constexpr bool kActivates = false;  // sums stay in registers, and f's code would be repeated for each one
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kMinArch = 90;  // shared memory
  // Pieces of a longer k are added up, which limits the error of long sums. Two pieces may have 128 of k each. With
  // more pieces, shorter ones give a smaller error.
  static constexpr int64_t kMostK = 128, kPieceK = 96;

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static double error_bound(int64_t k);                                            // in units of 2^-24 |A||B|
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_CUDA is defined
};

// Plan of a piece. All pieces have the same one.
struct TallPiece {
  int tile;        // index into kTallTiles
  bool swapped;    // the transposed product, D^T = B^T A^T
  int64_t groups;  // blocks that share the rows of one panel of B
  double seconds;  // predicted time
};
struct TallPlan {
  Pieces pieces;
  TallPiece piece;
};

// Store method of a warp's tile. kSingles: one element at a time. kRows, kColumns: one element at a time. In these two,
// neighbouring lanes store neighbours of a row or a column. kAlongN, kAlongM: vectors of the elements that a thread has
// side by side.
enum class TallStores { kSingles, kRows, kColumns, kAlongN, kAlongM };
TallStores tall_stores(int tile, const Problem& p);  // precondition: the problem is not swapped

// Floats of staging for a part of a warp's tile: eight rows, or 32 rows of four columns.
inline constexpr int kTallPitch = 40;
constexpr int tall_staged(int cols) { return 8 * cols > 4 * kTallPitch ? 8 * cols : 4 * kTallPitch; }

// Bytes of shared memory of a block: B's panel, and for each warp a ring and staging for a part of its tile.
int tall_bytes(int tile, bool a_along_k, int64_t k);

}  // namespace sgemm::ieee
