// Batches of tiny products: how they are cut up, and what that takes. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm::ieee {

// Products whose m and n are at most `size`, k in steps of as many. A block computes `products` of them.
struct TinyClass {
  int size;
  int tm, tn;  // thread tile
  int products;
  int resident;  // blocks per SM, by shared memory and by registers

  constexpr int threads_of_product() const { return size / tm * (size / tn); }
  constexpr int threads() const { return products * threads_of_product(); }
};

// The thread tile grows as the product does, from what memory bounds to what the FFMA pipe bounds.
inline constexpr TinyClass kTinyClasses[] = {
    {4, 4, 4, 128, 8}, {8, 4, 4, 32, 8}, {16, 4, 4, 8, 8}, {32, 4, 4, 2, 8}, {64, 4, 4, 1, 4}};
inline constexpr int kTinyCount = sizeof kTinyClasses / sizeof kTinyClasses[0];
inline constexpr int kLargestTiny = kTinyClasses[kTinyCount - 1].size;

// A class that a problem fits in. A larger one than needed takes a long k in fewer steps.
struct TinyPlan {
  int index;  // of the class
  double seconds;
};
Plan tiny_plan(const Problem& p, const Device& device);  // the fastest, as predicted
void each_tiny_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
std::string tiny_cut(const Plan& plan);

// How a block reads an operand: 16 bytes at a time or one element after the other.
struct TinyRead {
  bool by_cols;  // along columns
  bool quads;
};
TinyRead tiny_read(const ConstMatrix& x);

}  // namespace sgemm::ieee
