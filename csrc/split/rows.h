// The split family's rows of the kernel table: tiles, limits, plans and launches.
#pragma once
#include <array>

#include "../problem/buffers.h"
#include "../problem/cut.h"
#include "../problem/fastest.h"
#include "../problem/problem.h"
#include "../problem/redone.h"
#include "bound.h"
#include "plan/plan.h"

namespace sgemm::split {

// Tile sizes of a row. Tiles of half the columns give a problem that doesn't fill the GPU twice as many tiles, and the
// blocks of a cluster half as much to add up.
template <class F, bool STREAMS>
inline constexpr std::array kTilesOf = {TileSize{kTile, kTile}};
template <>
inline constexpr std::array kTilesOf<Fp16x3, false> = {TileSize{kTile, kTile}, TileSize{kTile, kTile / 2}};
template <>
inline constexpr std::array kTilesOf<Fp16x3, true> = {TileSize{kTile, kTile / 2}, TileSize{kTile, kTile}};

template <class F, bool STREAMS = false>
struct SplitProduct {
  using Format = F;
  static constexpr bool kOnTheFly = STREAMS, kFewRows = false;
  static constexpr const auto& kTiles = kTilesOf<F, STREAMS>;
  static constexpr int kTileCount = kTiles.size();
  static constexpr const char* kSource = STREAMS          ? "split/launch/onthefly_sm90a.cu"
                                         : kPairs<F> == 1 ? "split/launch/product_sm90a.cu"
                                                          : "split/launch/product_bf16x6_sm90a.cu";
  static constexpr int BM = kTiles[0].bm, BN = kTiles[0].bn, BK = kStep, TM = 2, TN = BM * BN / 256 / TM;
  static constexpr int kThreads = 256;  // threads that hold accumulators
  static constexpr bool kActivates = true;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;  // only sm_90a has wgmma
  // Smallest k for which `auto` takes the row. In a sum of few terms, the rounding errors of both elements and the
  // omitted lo * lo rarely cancel.
  static constexpr int64_t kAutoFrom = kPairs<F> == 1 ? 32 : 0;

  static constexpr bool kTakesPlanes = !STREAMS && kPairs<F> == 1;

  static constexpr RowShape shape(int tile) {
    return {kPairs<F>, kPairs<F> == 1 ? 3 : 6, STREAMS, kTiles[tile].bm, kTiles[tile].bn};
  }

  static Plan plan(const Problem& p, const Device& device) {
    return fastest<Plan>([&](const auto& visit) { each_plan(p, device, visit); });
  }
  static Plan invariant_plan(const Problem& p, const Device& device);  // only for the row of float16 planes
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // defined only if SGEMM_SM90A is

  // The kernel that splits A in registers adds each stage's corrections to the sum: one more rounding a stage.
  static double error_bound(int64_t k) {
    const int window = STREAMS || k <= kLongWindow ? kWindow : kLongWindow;
    return Bound<F>::of(k, window) + (STREAMS ? static_cast<double>(ceil_div(k, kOnTheFlySteps * kStep)) : 0);
  }

  // Returns the problem that the kernel computes. The operand that is split on the fly is the larger one and must be A,
  // so that the problem may be the transposed one.
  static Problem solved(const Problem& p) { return STREAMS && p.m < p.n ? transposed(p) : p; }
};

template <class F, bool STREAMS>
void SplitProduct<F, STREAMS>::each_plan(const Problem& asked, const Device& device, const PlanVisitor& visit) {
  const Problem p = solved(asked);
  for (int tile = 0; tile < kTileCount; ++tile)
    split::each_plan(shape(tile), p, device, workspace_limit(), kTakesPlanes && p.b_planes, [&](const SplitPlan& plan) {
      visit({plan.seconds, workspace(p, plan), plan, tile});
    });
}

template <class F, bool STREAMS>
std::string SplitProduct<F, STREAMS>::cut(const Plan& planned) {
  const auto plan = planned.own<SplitPlan>();
  Cut cut;
  if (plan.few_rows) return cut.number("few_rows", 1, 0).number("parts", plan.parts, 0).text();
  cut.tile(kTiles[planned.tile].bm, kTiles[planned.tile].bn).number("cluster", plan.cluster, 1);
  cut.number("slices", plan.slices, 1).number("parts", plan.parts, 1).number("splits_b", plan.splits_b, 0);
  return cut.text();
}

// Products whose smaller operand has few rows, or columns. The larger one is A of the problem that the kernel solves:
// its rows are wgmma's, and the few are columns.
struct FewRowsProduct {
  using Format = Fp16x3;
  static constexpr bool kOnTheFly = false, kFewRows = true;
  static constexpr int kTileCount = 1;
  static constexpr TileSize kTile64 = {kTile, kTile / 2};
  static constexpr const char* kSource = "split/launch/few_rows_sm90a.cu";
  static constexpr int BM = kTile64.bn, BN = kTile64.bm, BK = kStep, TM = 2, TN = BM * BN / 256 / TM;
  static constexpr int kThreads = 256;  // threads that hold accumulators
  static constexpr bool kActivates = true, kTakesPlanes = true;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;  // only sm_90a has wgmma
  static constexpr int64_t kAutoFrom = SplitProduct<Fp16x3>::kAutoFrom;
  // More rows make several tiles of columns, which each read the larger operand; split_fp16x3 reads it once.
  static constexpr int64_t kMostRows = kTile64.bn;

  static constexpr RowShape shape(int) { return {1, 3, false, kTile64.bm, kTile64.bn, true}; }

  static Plan plan(const Problem& p, const Device& device) {
    return fastest<Plan>([&](const auto& visit) { each_plan(p, device, visit); });
  }
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // defined only if SGEMM_SM90A is
  static double error_bound(int64_t k) { return SplitProduct<Fp16x3>::error_bound(k); }

  // Returns true if the kernel computes the transposed product.
  static bool swaps(const Problem& p) { return p.m <= p.n; }
  // Returns the transposed problem. Its `b_planes` are those of A.
  static Problem exchanged(const Problem& p) {
    Problem q = transposed(p);
    q.b_planes = p.b_planes;
    return q;
  }
  // Returns the problem that the kernel computes.
  static Problem solved(const Problem& p) { return swaps(p) ? exchanged(p) : p; }
};

inline void FewRowsProduct::each_plan(const Problem& asked, const Device& device, const PlanVisitor& visit) {
  const Problem p = solved(asked);
  const bool packed = asked.b_planes, swapped = swaps(asked);
  each_few_plan(shape(0), p, device, workspace_limit(), {packed && swapped, packed && !swapped},
                [&](const SplitPlan& plan) {
                  visit({plan.seconds, workspace(p, plan), plan, 0});
                });
}

inline std::string FewRowsProduct::cut(const Plan& planned) {
  const auto plan = planned.own<SplitPlan>();
  return Cut().number("slices", plan.slices, 1).number("parts", plan.parts, 0).text();
}

// The plan that is predicted to be the fastest: in tiles of either size, or by the kernel of few rows. All of them give
// the same bits.
template <class F, bool STREAMS>
Plan SplitProduct<F, STREAMS>::invariant_plan(const Problem& p, const Device& device) {
  const bool packed = p.b_planes;
  return fastest<Plan>([&](const auto& visit) {
    for (int tile = 0; tile < kTileCount; ++tile) {
      const SplitPlan plan = split::invariant_plan(shape(tile), p, device, workspace_limit(), packed);
      visit(Plan(plan.seconds, workspace(p, plan), plan, tile));
    }
    const Problem few = FewRowsProduct::exchanged(p);  // whatever m is: the weight must be A
    if (const auto plan = invariant_few_plan(FewRowsProduct::shape(0), few, device, workspace_limit(), packed))
      visit(Plan(plan->seconds, workspace(few, *plan), *plan));
  });
}

// Bytes of a packed B.
inline size_t plane_bytes(int64_t k, int64_t n) { return packed_layout(SplitProduct<Fp16x3>::shape(0), k, n).total; }

// Defined only if SGEMM_SM90A is.
void pack_b(const ConstMatrix& b, ElementType elements, void* planes, const Context& context);
Redone redone();

}  // namespace sgemm::split
