// Raw panels of 32 rows and 32 of k, and the planes that a splitting warp makes of them.
#pragma once
#include "../../gpu/panel_view.cuh"
#include "../plan/sizes.h"

namespace sgemm::split {

// A raw panel has 32 lines of 128 bytes: its rows if memory runs along k, otherwise its columns of k. Chunks of 16
// bytes have the swizzle of 128 bytes.
constexpr int kLines = 32, kLinesBytes = kLines * kRowBytes;
static_assert(kStep == kLines && kRowBytes == 128);

// Returns where element `i` of a line lies, in bytes from the panel's start.
__device__ __forceinline__ int place_in_lines(int line, int i) {
  return line * kRowBytes + ((i / 4 ^ line % 8) << 4) + i % 4 * 4;
}

// Reads eight elements of a row of a raw panel, from `k` on.
template <bool ALONG_K>
__device__ __forceinline__ void read_row(const char* panel, int row, int k, float (&x)[8]) {
  if constexpr (ALONG_K) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(panel + place_in_lines(row, k + i));
      x[i] = quad.x;
      x[i + 1] = quad.y;
      x[i + 2] = quad.z;
      x[i + 3] = quad.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = *reinterpret_cast<const float*>(panel + place_in_lines(k + i, row));
  }
}

// Writes eight elements of a plane, 0 or 1, from `k` on. A row of planes holds 32 of k of hi, then of lo.
__device__ __forceinline__ void write_row(char* panel, int row, int k, int plane, const uint32_t (&pairs)[4]) {
  char* const to = panel + row * kRowBytes + ((4 * plane + k / 8 ^ row % 8) << 4);
  *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// wgmma descriptors of rows of planes.
struct SplitRowsView : PanelView<false, 2 * kStep> {
  using Panel = PanelView<false, 2 * kStep>;
  // `block`: index of 64 rows within the operand's panels.
  __device__ __forceinline__ SplitRowsView(uint32_t address, int block) : Panel(address + block * kBlockBytes) {}
  // Adds to the descriptor's lower half alone: its address doesn't overflow.
  __device__ __forceinline__ uint64_t plane(int stage_offset, int index, int half) const {
    const uint32_t low = static_cast<uint32_t>(first) + stage_offset + (2 * index + half) * kNext16;
    return first >> 32 << 32 | low;
  }
};

}  // namespace sgemm::split
