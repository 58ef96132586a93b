// The row for products that are bound by reading one operand: how it is cut up. Pure host code.
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

// Long sums drift: of so many of k that lie across a block's warps, an eighth each, a thread's chains end. In whole
// turns of what B waits with.
inline constexpr int kSkinnyChain = 768;

struct SkinnyPlan {
  bool swapped;           // the transposed product, D^T = B^T A^T: A is then the operand that is streamed
  bool along_k;           // its neighbours in memory lie along k
  int width;              // columns of a block: 1, 2, 4, 8 or 16
  int rows;               // of a block
  int cluster;            // blocks that share a tile, each with a part of k
  int64_t slice, slices;  // of k: products of their own, added up at the end
  double seconds;         // predicted
};
SkinnyPlan skinny_plan(const Problem& p, const Device& device);

// A block's part of k: quads are not cut.
inline int64_t skinny_part(const SkinnyPlan& plan) { return ceil_div(ceil_div(plan.slice, plan.cluster), 4) * 4; }

}  // namespace sgemm::ieee
