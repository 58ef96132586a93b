// The 16-bit products of one stage's panels, which lie in shared memory.
#pragma once
#include "format.cuh"

namespace sgemm::split {

// An operand's panels of ROWS in shared memory as wgmma's descriptors see them; distances in units of 16 bytes.
template <bool ALONG_MN, int ROWS>
struct PanelView {
  uint64_t first;  // the first plane, the warpgroup's rows
  static constexpr bool kAlongMn = ALONG_MN;
  static constexpr int kHalf = ALONG_MN ? 128 : 2;  // to the second 16 of k
  static constexpr int kSecondPlane = ALONG_MN ? ROWS * 4 : 4;
  static constexpr int kSecondPair = ROWS * kRowBytes / 16;
  // `block`: 64 rows of the panel.
  __device__ __forceinline__ PanelView(uint32_t address, int block)
      : first(hopper::matrix_descriptor(address + block * (ALONG_MN ? 4096 : 8192), ALONG_MN ? 4096 : 16, 1024)) {}
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

  // d += plane i of A times plane j of B; d starts anew with the first half of the stage unless `add`.
  __device__ __forceinline__ void product(Sums& d, int i, int j, int half, bool add) const {
    hopper::multiply<typename F::Element, ViewA::kAlongMn, ViewB::kAlongMn>(d, a.plane(offset, i, half),
                                                                            b.plane(offset, j, half), add);
  }

  __device__ __forceinline__ void main(Sums& d, bool add) const {
    product(d, 0, 0, 0, add);
    product(d, 0, 0, 1, true);
    hopper::commit_products();
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
    hopper::commit_products();
  }
};

}  // namespace sgemm::split
