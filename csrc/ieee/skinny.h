// Row for products that are bound by reading one operand: the choice of plans. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm::ieee {

struct Skinny {
  static constexpr const char* kIdea =
      "one operand streamed once, straight to registers; few rows or columns of the other";
  static constexpr const char* kSource = "ieee/skinny.cu";
  static constexpr int BM = 128, BN = 16, BK = 128, TM = 4, TN = 2;
  static constexpr int kThreads = 256;
  static constexpr bool kActivates = true;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kMinArch = 90;  // clusters

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static double error_bound(int64_t k);                                            // in units of 2^-24 |A||B|
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_CUDA is defined
};

// Length of an accumulation chain if A lies along m, in k of the block; each of its 8 warps takes an eighth. Ending
// chains limits the error of long sums. The length must be a multiple of the k in a buffer of B.
inline constexpr int kSkinnyChain = 768;

struct SkinnyPlan {
  bool swapped;           // the transposed product, D^T = B^T A^T: A is always the streamed operand
  bool along_k;           // A is contiguous along k
  int width;              // columns per block: 1, 2, 4, 8 or 16
  int rows;               // rows per block
  int cluster;            // blocks that share a tile, each with a part of k
  int64_t slice, slices;  // k of a slice, and number of slices: separate products, added up by a second kernel
  double seconds;         // predicted time
};
SkinnyPlan skinny_plan(const Problem& p, const Device& device);

// Returns a block's part of k, a multiple of 4 so that no quad is cut.
inline int64_t skinny_part(const SkinnyPlan& plan) { return ceil_div(ceil_div(plan.slice, plan.cluster), 4) * 4; }

}  // namespace sgemm::ieee
