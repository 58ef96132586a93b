// Turns of two warpgroups at the tensor cores. Each has one accumulator for the products of a window: while one
// warpgroup adds it to its sums, the other multiplies. Without turns both would share the tensor cores, and leave them
// idle while both add.
#pragma once
#include "cluster_reduction.cuh"

namespace sgemm::split {

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

}  // namespace sgemm::split
