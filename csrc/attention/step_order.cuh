// The order of the steps of 16 along the depth, in which hi hi of Q K^T is added up.
#pragma once
#include "shape.cuh"

namespace sgemm::attention {

// Steps whose keys are large go last: once the sum is large, further steps are cut off at a bit of its size. Outliers
// are in the same channels of all keys, so eight keys of a block decide. Any order is right.
//
// Called by a warp. `largest_of(i)`: the bits of the largest magnitude among the lane's elements of step i, where the
// warp has the block's first eight rows. Returns the steps, four bits each, the first one lowest.
template <int DEPTH, class Largest>
__device__ __forceinline__ uint32_t order_of_steps(const Largest& largest_of) {
  constexpr uint32_t kSteps = DEPTH / 16, kAll = (1 << kSteps) - 1;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t largest = 0;  // of the lane's step
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t of_step = __reduce_max_sync(~0u, largest_of(i));
    if (lane == i) largest = of_step;
  }
  constexpr uint32_t kEighth = 3 << 23;  // of a float's bits
  const uint32_t most = __reduce_max_sync(~0u, largest), large = max(most, kEighth) - kEighth;
  const uint32_t last = __ballot_sync(~0u, largest >= large) & kAll;
  const uint32_t before = (1u << lane) - 1, own = last >> lane & 1 ? last : ~last;
  const int place = __popc(own & before) + (own == last ? __popc(~last & kAll) : 0);
  return __reduce_or_sync(~0u, lane < kSteps ? lane << 4 * place : 0);
}
constexpr uint32_t kOrderInMemory = 0x76543210;

// Reads an order that all threads of a warp share; the compiler then keeps what derives from it in uniform registers.
__device__ __forceinline__ uint32_t uniform_order(const volatile uint32_t* order) {
  return __reduce_max_sync(~0u, *order);
}
// Returns the step at a place of an order.
template <int DEPTH>
__device__ __forceinline__ uint32_t step_at(uint32_t order, int place) {
  return order >> 4 * place & (DEPTH <= 64 ? 3 : 7);
}

}  // namespace sgemm::attention
