// The main loop: a warpgroup computes a tile's sums on the tensor cores, from the panels in the ring.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../../gpu/warpgroups.cuh"
#include "../format/planes.cuh"
#include "../plan/job.h"
#include "ring.cuh"

namespace sgemm::split {

// wgmma descriptors of an operand's planes in a stage: panels of ROWS rows.
template <bool ALONG_MN, int ROWS>
struct PlaneView : PanelView<ALONG_MN, kStep> {
  using Panel = PanelView<ALONG_MN, kStep>;
  static constexpr int kSecondPlane = ROWS * 4, kSecondPair = ROWS * kRowBytes / 16;  // in units of 16 bytes
  // `block`: index of 64 rows within the panel.
  __device__ __forceinline__ PlaneView(uint32_t address, int block) : Panel(address + block * Panel::kBlockBytes) {}
  __device__ __forceinline__ uint64_t plane(int stage_offset, int index, int half) const {
    return Panel::at(stage_offset + index / 2 * kSecondPair + index % 2 * kSecondPlane, half);
  }
};

// Issues the products of one stage for a warpgroup's rows of a tile. Each thread has N sums. The first corrections have
// A's hi, or B's if B_FIRST: a kernel whose operands are exchanged then adds up in the order of the others.
template <class F, class ViewA, class ViewB, int N, bool B_FIRST = false>
struct StageProducts {
  using Sums = float[N];
  const ViewA& a;
  const ViewB& b;
  const int offset;  // offset of the stage in the ring, in units of 16 bytes

  // Computes d = plane i of A times plane j of B, over 16 of k, or adds that product to d if `add`.
  __device__ __forceinline__ void product(Sums& d, int i, int j, int half, bool add) const {
    hopper::multiply<typename F::Element, ViewA::kAlongMn, ViewB::kAlongMn>(d, a.plane(offset, i, half),
                                                                            b.plane(offset, j, half), add);
  }

  // Computes hi * hi. In a stage that holds only hi, plane 1 is the hi of a second step of k, stored where lo would be.
  __device__ __forceinline__ void main(Sums& d, bool add, int plane = 0) const {
    product(d, plane, plane, 0, add);
    product(d, plane, plane, 1, true);
  }

  __device__ __forceinline__ void corrections(Sums& d, bool add) const {
    constexpr int kFirst = B_FIRST, kSecond = 1 - kFirst;
    product(d, kFirst, kSecond, 0, add);
    product(d, kFirst, kSecond, 1, true);
    product(d, kSecond, kFirst, 0, true);
    product(d, kSecond, kFirst, 1, true);
    if constexpr (kPairs<F> == 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        product(d, 0, 2, half, true);
        product(d, 1, 1, half, true);
        product(d, 2, 0, half, true);
      }
    }
  }

  // Adds the corrections to `d` where only one operand has lower planes: A if `lower_a`, else B.
  __device__ __forceinline__ void corrections_of(bool lower_a, Sums& d) const {
#pragma unroll
    for (int plane = 1; plane < QuadPlanes<F>::kPlanes; ++plane) {
      const int i = lower_a ? plane : 0, j = lower_a ? 0 : plane;
      product(d, i, j, 0, true);
      product(d, i, j, 1, true);
    }
  }
};

// The steps of k that a warpgroup multiplies for a tile.
struct TileSteps {
  int count, ahead;  // `ahead`: steps_ahead()
  int parity;        // the tile's buffer of two: PipelineState<2>::stage
};

// The main loop for operands that have planes. Adds hi * hi to the sum while the tensor cores work on the corrections,
// which keep one accumulator for all of k. There are three loops over stages: with the lower planes of both operands,
// of one, and of none.
template <class F, class R>
struct KeepCorrections {
  template <class ViewA, class ViewB, int N>
  __device__ __forceinline__ static void run(const Job& job, ProductShared& shared, const char*, const ViewA& a,
                                             const ViewB& b, PipelineState<R::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&correction)[N]) {
    const bool leader = t % 32 == 0;
    float fresh[N];  // initialised too: otherwise the compiler would keep the previous tile's values alive
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = correction[e] = fresh[e] = 0;
    hopper::fence_registers(correction);
    const auto add_fresh = [&] {
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += fresh[e];
    };
    const auto stage_products = [&] {
      return StageProducts<F, ViewA, ViewB, N, R::kFew>{a, b, at.stage * (R::kStageBytes / 16)};
    };
    const auto release = [&](int stage) {
      if (leader) hopper::arrive(&shared.empty[stage]);
    };
    int step = 0, end = steps.ahead, previous = -1;
    uint32_t lower = kLowerBoth;
    const auto learn_lower = [&] {
      hopper::wait(&shared.full[at.stage], at.parity);            // the producer has written shared.lower by then
      lower = __reduce_or_sync(~0u, shared.lower[steps.parity]);  // uniform for the compiler too
      end = steps.count;
    };
    const auto multiply = [&](const auto& corrections) {
      for (; step < end; ++step) {
        const auto stage = stage_products();
        hopper::wait(&shared.full[at.stage], at.parity);
        if constexpr (N == 4)
          hopper::fence_registers(fresh);  // else the compiler would move them behind the next fence
        hopper::fence_products();
        stage.main(fresh, (step & job.promotion) != 0);
        hopper::commit_products();
        corrections(stage);
        hopper::commit_products();
        hopper::wait_products<1>();  // hi * hi is complete, and so are the corrections of the previous stage
        hopper::fence_registers(fresh);
        if (previous >= 0) release(previous);
        if ((step & job.promotion) == job.promotion || step + 1 == steps.count) add_fresh();
        previous = at.stage;
        at.advance();
      }
    };
    const auto drain = [&] {
      hopper::wait_products<0>();
      hopper::fence_registers(correction);
      release(previous);
      previous = -1;
    };
    if (end == 0) learn_lower();
    if (lower == kLowerBoth) {
      for (;;) {
        multiply([&](const auto& stage) { stage.corrections(correction, true); });
        if (end == steps.count) break;
        learn_lower();
        if (lower != kLowerBoth) break;
      }
      drain();
    }
    if (__builtin_expect(step < steps.count, false)) {
      if (lower != 0) {
        multiply([&](const auto& stage) { stage.corrections_of(lower == kLowerA, correction); });
        drain();
      }
      // Only hi is needed here, so a stage holds two steps of k. Only steps multiplied before this was known have
      // corrections, and these are zeros.
      const uint32_t left = __reduce_max_sync(~0u, steps.count - step);
      const Turns turns(t / 128);
      // Multiplies a plane of a stage, or both of its planes. `last` releases the stage.
      const auto add_window = [&](int plane, bool both, bool last) {
        const auto stage = stage_products();
        if (plane == 0) hopper::wait(&shared.full[at.stage], at.parity);
        turns.begin();
        hopper::fence_products();
        stage.main(fresh, false, plane);
        if (both) stage.main(fresh, true, 1);
        hopper::commit_products();
        turns.end();
        hopper::wait_products<0>();
        hopper::fence_registers(fresh);
        if (last) {
          release(at.stage);
          at.advance();
        }
        add_fresh();
      };
#pragma unroll 1
      for (uint32_t i = 0; i < left / 2; ++i) {
        if (job.promotion) {
          add_window(0, true, true);
        } else {
          add_window(0, false, false);
          add_window(1, false, true);
        }
      }
      if (left % 2) add_window(0, false, true);
      turns.finish();
    }
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = fmaf(correction[e], F::kCorrection, sum[e]);
  }
};

}  // namespace sgemm::split
