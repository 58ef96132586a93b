// The stages of a ring in shared memory: their layout, and wgmma's view of a panel in one.
#pragma once
#include "ptx/wgmma.cuh"

namespace sgemm {

// A ring of stages; each stage holds A's panel, then B's.
template <int BYTES_A, int BYTES_B, int STAGES>
struct StageRing {
  static constexpr int kStages = STAGES, kBytesA = BYTES_A, kBytesB = BYTES_B;
  static constexpr int kStageBytes = kBytesA + kBytesB, kBytes = kStages * kStageBytes;
};

// wgmma descriptors of a panel of 16-bit elements, DEPTH of k deep: blocks of 64 rows, one after the other. Along k, a
// row of a block holds DEPTH elements; along m or n, each k of a block holds its 64 rows. Distances are in units of 16
// bytes.
template <bool ALONG_MN, int DEPTH>
struct PanelView {
  static constexpr bool kAlongMn = ALONG_MN;
  static constexpr int kLineBytes = DEPTH * 2, kBlockBytes = 64 * kLineBytes;
  static constexpr int kBlock = kBlockBytes / 16, kNext16 = ALONG_MN ? 128 : 2;  // the next 64 rows, the next 16 of k
  uint64_t first;

  __device__ __forceinline__ explicit PanelView(uint32_t address)
      : first(ALONG_MN ? hopper::matrix_descriptor(address, kBlockBytes, 1024)
                       : hopper::matrix_descriptor<kLineBytes>(address, 16, 8 * kLineBytes)) {}
  // Returns the descriptor of the q-th 16 of k, `offset` from the first panel.
  __device__ __forceinline__ uint64_t at(int offset, int q) const { return first + offset + q * kNext16; }
};

}  // namespace sgemm
