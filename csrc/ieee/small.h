// The row for products of few tiles: how they are cut up. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm::ieee {

// A block's tile. Each of its eight warps does the whole tile, with a part of k.
struct SmallTile {
  int tm, tn;          // thread tile; the lanes of a warp are 8 x 4
  int stages;          // of a warp's ring
  bool any_depth;      // else a warp takes no more than kSmallRun steps
  int resident[2][2];  // blocks of an SM, by whether A and B lie along k: registers and rings allow no more

  constexpr int rows() const { return 8 * tm; }
  constexpr int cols() const { return 4 * tn; }
};
inline constexpr SmallTile kSmallTiles[] = {
    {2, 4, 4, true, {{3, 3}, {3, 2}}}, {4, 4, 3, true, {{3, 2}, {2, 2}}}, {4, 8, 2, false, {{2, 2}, {2, 2}}}};
// Long sums drift: after so many steps a thread adds its sums to second ones. The largest tile has no registers for
// them.
inline constexpr int kSmallRun = 6;
inline constexpr int kSmallCount = sizeof kSmallTiles / sizeof kSmallTiles[0];

struct Small {
  static constexpr SmallTile kLargest = kSmallTiles[kSmallCount - 1];
  static constexpr const char* kIdea = "few small tiles, k shared by warps and blocks, all reads under way at once";
  static constexpr const char* kSource = "ieee/small.cu";
  static constexpr int BM = kLargest.rows(), BN = kLargest.cols(), BK = 16;
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int TM = 1, TN = BM * BN / kThreads;  // that a thread adds up in the end
  static constexpr bool kActivates = true;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kMinArch = 90;  // clusters

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static double error_bound(int64_t k);                                            // in units of 2^-24 |A||B|
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_CUDA is defined
};

struct SmallPlan {
  int tile;        // of kSmallTiles
  bool swapped;    // the transposed product, D^T = B^T A^T
  int cluster;     // blocks that share a tile, each with a part of k
  int64_t slices;  // of k: products of their own, added up at the end
  double seconds;  // predicted
};
inline constexpr int kMostBlocks = 8;  // of a cluster

// How an operand is read that is seen as rows along k: A, or B transposed.
struct SmallRead {
  bool along_k;  // neighbours in memory lie along k
  bool vector;   // 16 bytes at a time; the last quad of a line may be part of one
};
SmallRead small_read(const ConstMatrix& x);

}  // namespace sgemm::ieee
