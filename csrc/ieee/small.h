// Row for products of few tiles: the choice of plans. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm::ieee {

// A block's tile. Each of the block's eight warps computes the whole tile for a part of k.
struct SmallTile {
  int tm, tn;          // thread tile; the lanes of a warp are 8 x 4
  int stages;          // stages of a warp's ring
  bool any_depth;      // if false, a warp takes at most kSmallRun steps
  int resident[2][2];  // maximum blocks per SM by registers and rings, indexed by [A along k][B along k]

  constexpr int rows() const { return 8 * tm; }
  constexpr int cols() const { return 4 * tn; }
};
inline constexpr SmallTile kSmallTiles[] = {
    {2, 4, 4, true, {{3, 3}, {3, 2}}}, {4, 4, 3, true, {{3, 2}, {2, 2}}}, {4, 8, 2, false, {{2, 2}, {2, 2}}}};
// Number of steps after which a thread adds its sums to a second set, which limits the error of long sums. The largest
// tile has no registers for a second set.
inline constexpr int kSmallRun = 6;
inline constexpr int kSmallCount = sizeof kSmallTiles / sizeof kSmallTiles[0];

struct Small {
  static constexpr SmallTile kLargest = kSmallTiles[kSmallCount - 1];
  static constexpr const char* kIdea = "few small tiles, k shared by warps and blocks, all reads under way at once";
  static constexpr const char* kSource = "ieee/small.cu";
  static constexpr int BM = kLargest.rows(), BN = kLargest.cols(), BK = 16;
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int TM = 1, TN = BM * BN / kThreads;  // elements that a thread adds up at the end
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
  int tile;        // index into kSmallTiles
  bool swapped;    // the transposed product, D^T = B^T A^T
  int cluster;     // blocks that share a tile, each with a part of k
  int64_t slices;  // slices of k: separate products, added up by a second kernel
  double seconds;  // predicted time
};
inline constexpr int kMostBlocks = 8;  // largest cluster, in blocks

// Access pattern of an operand, seen as (rows, k): A, or Bᵀ.
struct SmallRead {
  bool along_k;  // contiguous along k
  bool vector;   // 16-byte copies; the last quad of a line may be partial
};
SmallRead small_read(const ConstMatrix& x);

}  // namespace sgemm::ieee
