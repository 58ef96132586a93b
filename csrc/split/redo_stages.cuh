// Steps of k of a tile's rows and columns in shared memory, where a tile is computed again: copied ahead of their use.
#pragma once
#include "redo_panel.cuh"

namespace sgemm::split {

// As many stages of the panels A and B as fit in BYTES, up to MOST.
template <class A, class B, int BYTES, int MOST>
class RedoStages {
 public:
  struct alignas(16) Stage {
    float a[A::kFloats], b[B::kFloats];
  };

  // By the consumers: use(stage, step, whether it is the last) for each step of k.
  template <class Use>
  __device__ __forceinline__ void each_step(A& a, B& b, int64_t depth, const Use& use) {
    const int steps = static_cast<int>(ceil_div(depth, kStep));
    const auto copy = [&](int step) {
      if (step < steps) {
        a.copy(stages_[step % kStages].a);
        b.copy(stages_[step % kStages].b);
      }
      commit_copies();
    };
#pragma unroll 1
    for (int step = 0; step < kStages - 1; ++step) copy(step);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_copies<kStages - 2>();
      sync_consumers();  // and the step before has been read
      copy(step + kStages - 1);
      use(stages_[step % kStages], step, step + 1 == steps);
    }
  }

 private:
  static constexpr int kFit = BYTES / sizeof(Stage), kStages = kFit < MOST ? kFit : MOST;
  static_assert(kStages >= 2);
  Stage stages_[kStages];
};

}  // namespace sgemm::split
