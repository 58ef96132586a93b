// The panels from which a tile is computed again: how they come to shared memory, and how threads read them.
//
// Layout: lines lie as they do in the operand, along k or along m or n: nothing is turned on the way, so that copies of
//         16 bytes serve both.
#pragma once
#include "../gpu/ptx/async_copy.cuh"
#include "tile_shape.cuh"

namespace sgemm::split {

constexpr int kRedoRound = 4;  // of k, that a thread reads at once

// ROWS rows of an operand, kStep of k at a time. A warp reads 8 * LANES of them, eight each in LANES lanes.
template <int ROWS, int LANES, bool ALONG_K>
class RedoPanel {
 public:
  static constexpr int kPitch = ALONG_K ? kStep + 4 : ROWS;  // eight rows of k begin in different banks
  static constexpr int kFloats = ALONG_K ? ROWS * kPitch : kStep * kPitch;

  // From row `first` of the operand on.
  __device__ __forceinline__ RedoPanel(const Operand& x, int batch, int64_t first, int64_t depth, int t)
      : quads_(x.vector && x.elements == ElementType::kFloat32),
        rows_(static_cast<int>(min(x.size - first, int64_t{ROWS}))),
        line_(t * (quads_ ? 4 : 1) / kLength),
        place_(t * (quads_ ? 4 : 1) % kLength),
        across_(ALONG_K ? x.stride : x.k_stride),
        step_(kStep * x.k_stride),
        depth_(depth),
        from_(x.at(batch, first, 0) + (line_ * across_ + place_ * (ALONG_K ? x.k_stride : x.stride))) {}

  // Starts to copy the next step. Nothing is read outside the operand.
  __device__ __forceinline__ void copy(float* to) {
    const int k = static_cast<int>(min(depth_, int64_t{kStep}));
    const int lines = (ALONG_K ? rows_ : k) - line_, left = (ALONG_K ? k : rows_) - place_;
    to += line_ * kPitch + place_;
    if (quads_)
      copy_lines<4>(to, lines, left);
    else if (from_.elements == ElementType::kFloat32)
      copy_lines<1>(to, lines, left);
    else
      convert_lines(to, lines, left);
    from_ = from_ + step_;
    depth_ -= kStep;
  }

  // Where the first of a lane's rows lies, `row` rows and `k` of k on.
  __device__ __forceinline__ static int place(int row, int lane, int k) {
    return ALONG_K ? (row + lane) * kPitch + k : k * kPitch + row + lane * 4;
  }
  // The i-th of its rows, from the warp's first on.
  __device__ __forceinline__ static int row(int lane, int i) {
    return ALONG_K ? lane + i * LANES : i / 4 * (LANES * 4) + lane * 4 + i % 4;
  }

  // A round of k; the first is at `from`, which is given for the round before.
  __device__ __forceinline__ static void read(float (&to)[kRedoRound][8], const float* from, int round) {
    from += round * kRedoRound * (ALONG_K ? 1 : kPitch);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (ALONG_K) {
        const float4 quad = *reinterpret_cast<const float4*>(from + i * LANES * kPitch);
        to[0][i] = quad.x;
        to[1][i] = quad.y;
        to[2][i] = quad.z;
        to[3][i] = quad.w;
      } else {
        const float4 quad = *reinterpret_cast<const float4*>(from + i / 2 * kPitch + i % 2 * (LANES * 4));
        to[i / 2][i % 2 * 4] = quad.x;
        to[i / 2][i % 2 * 4 + 1] = quad.y;
        to[i / 2][i % 2 * 4 + 2] = quad.z;
        to[i / 2][i % 2 * 4 + 3] = quad.w;
      }
    }
  }

 private:
  static constexpr int kLength = ALONG_K ? kStep : ROWS, kLines = ALONG_K ? ROWS : kStep;

  // WIDTH elements at a time, of which `left` are inside from the thread's first on; and `lines` lines.
  template <int WIDTH>
  __device__ __forceinline__ void copy_lines(float* to, int lines, int left) const {
    constexpr int kApart = kConsumers * WIDTH / kLength, kCount = kApart < kLines ? kLines / kApart : 1;
    if (kApart > kLines && line_ >= kLines) return;
    const int bytes = 4 * max(0, min(left, WIDTH));
    const float* from = from_.data;
#pragma unroll
    for (int i = 0; i < kCount; ++i, from += kApart * across_)
      copy_async<4 * WIDTH>(to + i * kApart * kPitch, from, i * kApart < lines ? bytes : 0);
  }

  // The same of elements of 16 bits, which can't be copied.
  __device__ __forceinline__ void convert_lines(float* to, int lines, int left) const {
    constexpr int kApart = kConsumers / kLength, kCount = kLines / kApart;
    float x[kCount];
    read_elements(
        x, from_, [&](int i) { return i * kApart * across_; }, [&](int i) { return i * kApart < lines && left > 0; });
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i * kApart * kPitch] = x[i];
  }

  const bool quads_;
  const int rows_, line_, place_;  // of the thread's first copy
  const int64_t across_, step_;
  int64_t depth_;        // of k, from the next step on
  ElementPointer from_;  // of the next step
};

}  // namespace sgemm::split
