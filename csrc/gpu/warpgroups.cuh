// The two consumer warpgroups of a block, which multiply and hold a tile's sums: their barrier, and their turns at the
// tensor cores.
#pragma once
#include "ptx/mbarrier.cuh"

namespace sgemm {

constexpr int kConsumers = 256;  // threads of the consumer warpgroups

// Synchronises the consumers. The lanes of a warp may have diverged.
__device__ __forceinline__ void sync_consumers() {
  __syncwarp();
  hopper::sync_some(1, kConsumers);
}

// Each warpgroup has one accumulator for the products of a window: while one warpgroup adds it to its sums, the other
// multiplies. Without turns both would share the tensor cores, and leave them idle while both add.
class Turns {
 public:
  // Precondition: both warpgroups begin, end and finish equally often. Warpgroup 0 has the first turn.
  __device__ __forceinline__ explicit Turns(int warpgroup) : warpgroup_(warpgroup) {
    if (warpgroup == 1) end();
  }
  __device__ __forceinline__ void begin() const { hopper::sync_some(kFirstBarrier + warpgroup_, kConsumers); }
  __device__ __forceinline__ void end() const { hopper::arrive_some(kFirstBarrier + 1 - warpgroup_, kConsumers); }
  // Consumes the last arrival, so that no barrier is left with one.
  __device__ __forceinline__ void finish() const {
    if (warpgroup_ == 0) begin();
  }

 private:
  static constexpr int kFirstBarrier = 2;  // and the next: the named barriers of the warpgroups' turns
  const int warpgroup_;
};

}  // namespace sgemm
