// Batches of tiny products: the plans and their predicted time. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm::ieee {

// Class of products whose m and n are at most `size`; k is processed in steps of `size`. A block computes `products` of
// them.
struct TinyClass {
  int size;
  int tm, tn;  // thread tile
  int products;
  int resident;  // blocks per SM, as limited by shared memory and registers

  constexpr int threads_of_product() const { return size / tm * (size / tn); }
  constexpr int threads() const { return products * threads_of_product(); }
};

// The thread tile grows with the product: small products are bound by memory, larger ones by the FFMA pipe.
inline constexpr TinyClass kTinyClasses[] = {
    {4, 4, 4, 128, 8}, {8, 4, 4, 32, 8}, {16, 4, 4, 8, 8}, {32, 4, 4, 2, 8}, {64, 4, 4, 1, 4}};
inline constexpr int kTinyCount = sizeof kTinyClasses / sizeof kTinyClasses[0];
inline constexpr int kLargestTiny = kTinyClasses[kTinyCount - 1].size;

// A class that a problem fits in. A larger class than needed takes a long k in fewer steps.
struct TinyPlan {
  int index;  // index into kTinyClasses
  double seconds;
};
Plan tiny_plan(const Problem& p, const Device& device);  // the plan with the shortest predicted time
void each_tiny_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
std::string tiny_cut(const Plan& plan);

// Access pattern of an operand. `quads`: 16 bytes at a time instead of one element.
struct TinyRead {
  bool by_cols;  // along columns
  bool quads;
};
TinyRead tiny_read(const ConstMatrix& x);

}  // namespace sgemm::ieee
