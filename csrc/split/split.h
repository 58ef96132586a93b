// The family's rows: what the table and the dispatch want to know of them.
#pragma once
#include "../gemm.h"
#include "bound.h"
#include "plan.h"

namespace sgemm::split {

// With tiles of M x N; FUSED: pass and product in one kernel.
template <class F, bool FUSED = false, int M = kTile, int N = kTile>
struct SplitProduct {
  using Format = F;
  static constexpr Shape kShape = {kPairs<F>, kPairs<F> == 1 ? 3 : 6, FUSED, M, N};
  static constexpr const char* kSource = "split/split_sm90a.cu";
  static constexpr int BM = M, BN = N, BK = kStep, TM = 2, TN = M * N / 256 / TM;
  static constexpr int kThreads = 256;  // that hold sums
  static constexpr bool kActivates = true;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;  // wgmma is sm_90a's alone

  static Plan plan(const Problem& p, const Device& device) { return split::plan(kShape, p, device, workspace_limit()); }
  static double seconds(const Problem& p, const Device& device) { return plan(p, device).seconds; }
  static size_t workspace(const Problem& p, const Device& device) {
    return split::workspace(kShape, p, plan(p, device));
  }
  static void launch(const Problem& p, const Context& context);  // only where SGEMM_SM90A is defined

  // A fused kernel adds the corrections of each step to the sum: one rounding more a step.
  static double error_bound(int64_t k) {
    const int window = FUSED || k <= kLongWindow ? kWindow : kLongWindow;
    return Bound<F>::of(k, window) + (FUSED ? static_cast<double>((k + kStep - 1) / kStep) : 0);
  }
};

using NarrowProduct = SplitProduct<Fp16x3, false, kTile, kTile / 2>;

// A product with a B that was split once, as kPackedRow does it, for many products.
inline constexpr const char* kPackedRow = "split_fp16x3";
struct PackedProduct {
  Plan plan;
  bool narrow;       // a NarrowProduct's tiles are predicted to be faster
  size_t workspace;  // bytes
};
// p.b is the matrix that was packed; p.batch is 1.
PackedProduct plan_packed(const Problem& p, const Device& device);
size_t packed_bytes(int64_t k, int64_t n);
// Only where SGEMM_SM90A is defined.
void pack_b(const ConstMatrix& b, void* packed, const Context& context);
void launch_packed(const Problem& p, const PackedProduct& planned, void* packed, const Context& context);

struct Redone {
  uint64_t elements, tiles;
};
// How much the guard has had redone on the current device since the library was loaded; waits for no work under way.
// Only where SGEMM_SM90A is defined.
Redone redone();
Redone redone_in_rows();  // by tall_sm90a.cu's kernels; part of it

}  // namespace sgemm::split
