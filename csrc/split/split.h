// The family's rows: what the table and the dispatch want to know of them.
#pragma once
#include "../common/buffers.h"
#include "../gemm.h"
#include "../kernels.h"
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

  static constexpr bool kTakesPlanes = !FUSED && kPairs<F> == 1 && M == kTile && N == kTile;

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_SM90A is defined

  // A fused kernel adds the corrections of each step to the sum: one rounding more a step.
  static double error_bound(int64_t k) {
    const int window = FUSED || k <= kLongWindow ? kWindow : kLongWindow;
    return Bound<F>::of(k, window) + (FUSED ? static_cast<double>((k + kStep - 1) / kStep) : 0);
  }
};

using NarrowProduct = SplitProduct<Fp16x3, false, kTile, kTile / 2>;

// With a B that was split before, as pack_b() does it. In square tiles or in narrow ones.
SplitPlan plan_packed(const Problem& p, const Device& device, size_t limit);
size_t plane_bytes(int64_t k, int64_t n);

template <class F, bool FUSED, int M, int N>
Plan SplitProduct<F, FUSED, M, N>::plan(const Problem& p, const Device& device) {
  const SplitPlan plan = kTakesPlanes && p.b_planes ? plan_packed(p, device, workspace_limit())
                                                    : split::plan(kShape, p, device, workspace_limit());
  return {plan.seconds, workspace(plan.narrow ? NarrowProduct::kShape : kShape, p, plan), plan};
}

template <class F, bool FUSED, int M, int N>
void SplitProduct<F, FUSED, M, N>::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  const bool packed = kTakesPlanes && p.b_planes;
  for (const bool narrow : {false, true}) {
    if (narrow && !packed) break;
    const Shape& shape = narrow ? NarrowProduct::kShape : kShape;
    split::each_plan(shape, p, device, workspace_limit(), packed, [&](SplitPlan plan) {
      plan.narrow = narrow;
      visit({plan.seconds, workspace(shape, p, plan), plan});
    });
  }
}

// Only where SGEMM_SM90A is defined.
void pack_b(const ConstMatrix& b, void* planes, const Context& context);
Redone redone();
Redone redone_in_rows();  // by tall_sm90a.cu's kernels; part of it

}  // namespace sgemm::split
