// Stage index in a ring, and the parity of the round, on which the stages' barriers are waited for.
#pragma once
#include <cstdint>

namespace sgemm {

template <int STAGES>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace sgemm
