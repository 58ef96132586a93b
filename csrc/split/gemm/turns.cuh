// The turns of two warpgroups that each have one accumulator for the products of a window: while one adds it to its
// sums, the other multiplies. Without turns both would share the tensor cores, and leave them alone while both add.
#pragma once
#include "cluster_reduction.cuh"

namespace sgemm::split {

class Turns {
 public:
  // For both warpgroups, which begin, end and finish equally often. The first has the first turn.
  __device__ __forceinline__ explicit Turns(int warpgroup) : warpgroup_(warpgroup) {
    if (warpgroup == 1) end();
  }
  __device__ __forceinline__ void begin() const { hopper::sync_some(kFirstBarrier + warpgroup_, kConsumers); }
  __device__ __forceinline__ void end() const { hopper::arrive_some(kFirstBarrier + 1 - warpgroup_, kConsumers); }
  // No barrier is left with arrivals.
  __device__ __forceinline__ void finish() const {
    if (warpgroup_ == 0) begin();
  }

 private:
  static constexpr int kFirstBarrier = 2;  // and the next: a warpgroup's turn
  const int warpgroup_;
};

}  // namespace sgemm::split
