// A tile's sums from the panels in the ring: by a warpgroup, on the tensor cores.
#pragma once
#include "ring.cuh"
#include "turns.cuh"

namespace sgemm::split {

// An operand's panels of ROWS in shared memory as wgmma's descriptors see them; distances in units of 16 bytes.
template <bool ALONG_MN, int ROWS>
struct PanelView {
  uint64_t first;  // the first plane, the warpgroup's rows
  static constexpr bool kAlongMn = ALONG_MN;
  static constexpr int kRowsApart = 64;             // bytes
  static constexpr int kHalf = ALONG_MN ? 128 : 2;  // to the second 16 of k
  static constexpr int kSecondPlane = ROWS * 4;
  static constexpr int kSecondPair = ROWS * kRowBytes / 16;
  // `block`: 64 rows of the panel.
  __device__ __forceinline__ PanelView(uint32_t address, int block)
      : first(ALONG_MN ? hopper::matrix_descriptor(address + block * 4096, 4096, 1024)
                       : hopper::matrix_descriptor<kRowsApart>(address + block * 64 * kRowsApart, 16, 8 * kRowsApart)) {
  }
  __device__ __forceinline__ uint64_t plane(int stage_offset, int index, int half) const {
    return first + stage_offset + index / 2 * kSecondPair + index % 2 * kSecondPlane + half * kHalf;
  }
};

// The products of one stage of a tile's rows; a thread has N sums.
template <class F, class ViewA, class ViewB, int N>
struct StageProducts {
  using Sums = float[N];
  const ViewA& a;
  const ViewB& b;
  const int offset;  // of the stage in the ring, in units of 16 bytes

  // d = plane i of A times plane j of B, 16 of k; d += that if `add`.
  __device__ __forceinline__ void product(Sums& d, int i, int j, int half, bool add) const {
    hopper::multiply<typename F::Element, ViewA::kAlongMn, ViewB::kAlongMn>(d, a.plane(offset, i, half),
                                                                            b.plane(offset, j, half), add);
  }

  // Of hi, or where that is all there is, of the second step's hi in the place of lo.
  __device__ __forceinline__ void main(Sums& d, bool add, int plane = 0) const {
    product(d, plane, plane, 0, add);
    product(d, plane, plane, 1, true);
  }

  __device__ __forceinline__ void corrections(Sums& d, bool add) const {
    product(d, 0, 1, 0, add);
    product(d, 0, 1, 1, true);
    product(d, 1, 0, 0, true);
    product(d, 1, 0, 1, true);
    if constexpr (kPairs<F> == 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        product(d, 0, 2, half, true);
        product(d, 1, 1, half, true);
        product(d, 2, 0, half, true);
      }
    }
  }

  // Added to `d`, where one operand has lower planes: A, or B.
  __device__ __forceinline__ void corrections_of(bool lower_a, Sums& d) const {
#pragma unroll
    for (int plane = 1; plane < QuadPlanes<F>::kPlanes; ++plane) {
      const int i = lower_a ? plane : 0, j = lower_a ? 0 : plane;
      product(d, i, j, 0, true);
      product(d, i, j, 1, true);
    }
  }
};

// A tile's part of the work, in steps of k.
struct TileSteps {
  int count, ahead;  // steps_ahead()
  int parity;        // of the tile
  int first;         // counted from the tile's
};

// hi * hi is added to the sum while the tensor cores work on the corrections, which stay there for all of k. There are
// three loops over stages: with the lower planes of both operands, of one, and of none.
template <class F, class R>
struct KeepCorrections {
  template <class ViewA, class ViewB, int N>
  __device__ __forceinline__ static void run(const Job& job, ProductShared& shared, const char*, const ViewA& a,
                                             const ViewB& b, PipelineState<R::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&correction)[N]) {
    const bool leader = t % 32 == 0;
    float fresh[N];  // set too: else its registers would be taken for what the tile before left in them
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = correction[e] = fresh[e] = 0;
    hopper::fence_registers(correction);
    const auto add_fresh = [&] {
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += fresh[e];
    };
    const auto stage_products = [&] {
      return StageProducts<F, ViewA, ViewB, N>{a, b, at.stage * (R::kStageBytes / 16)};
    };
    const auto release = [&](int stage) {
      if (leader) hopper::arrive(&shared.empty[stage]);
    };
    int step = 0, end = steps.ahead, previous = -1;
    uint32_t lower = kLowerBoth;
    const auto learn_lower = [&] {
      hopper::wait(&shared.full[at.stage], at.parity);            // the producer knows by then
      lower = __reduce_or_sync(~0u, shared.lower[steps.parity]);  // one value, in the compiler's eyes as well
      end = steps.count;
    };
    const auto multiply = [&](const auto& corrections) {
      for (; step < end; ++step) {
        const auto stage = stage_products();
        hopper::wait(&shared.full[at.stage], at.parity);
        hopper::fence_products();
        stage.main(fresh, (step & job.promotion) != 0);
        hopper::commit_products();
        corrections(stage);
        hopper::commit_products();
        hopper::wait_products<1>();  // hi * hi is done, and with it the corrections of the stage before
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
      // hi alone, of two steps a stage. Only steps that were multiplied before it was known have corrections: zeros.
      const uint32_t left = __reduce_max_sync(~0u, steps.count - step);
      const Turns turns(t / 128);
      // A plane of a stage, or both; its last gives the stage back.
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
