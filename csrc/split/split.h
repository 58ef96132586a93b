// The family's rows: what the table and the dispatch want to know of them.
#pragma once
#include "../gemm.h"
#include "plan.h"

namespace sgemm::split {

template <class F>
struct SplitProduct {
  static constexpr const char* kSource = "split/split_sm90a.cu";
  static constexpr int BM = kTile, BN = kTile, BK = kStep, TM = 2, TN = 32;
  static constexpr int kThreads = 256;  // that hold sums; a warpgroup more loads
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;  // wgmma is sm_90a's alone

  static double seconds(const Problem& p, const Device& device);
  static size_t workspace(const Problem& p, const Device& device);
  static void launch(const Problem& p, const Context& context);  // only where SGEMM_SM90A is defined
};

struct Redone {
  uint64_t elements, tiles;
};
// What the guard had redone on the current device since the library was loaded, without waiting for work under way.
// Only where SGEMM_SM90A is defined.
Redone redone();

}  // namespace sgemm::split
