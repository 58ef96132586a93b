// An operand's panel in shared memory that a warp fills and reads without waiting for other warps.
//
// Layout: an operand that is contiguous along k is stored as rows of k, any other one as rows of m or n, so that copies
//         never transpose. Four of k are multiplied at a time.
#pragma once
#include <cstdint>
#include <type_traits>

#include "../gpu/ptx/async_copy.cuh"

namespace sgemm::ieee {

constexpr int kWarpDepth = 16;  // k per step

// ROWS of A or columns of B for one step of k, in shared memory. Each of LANES lanes has N rows.
template <bool ALONG_K, int N, int LANES>
struct WarpPanel {
  static constexpr int kRows = N * LANES, kDepth = kWarpDepth;
  static constexpr int kPitch = ALONG_K ? kDepth + 4 : kRows;  // eight rows of k begin in different banks
  static constexpr int kFloats = ALONG_K ? kRows * kPitch : kDepth * kPitch;
  static constexpr int kWide = N < 4 ? N : 4;  // neighbouring rows of a thread, if they lie side by side
  using Wide = std::conditional_t<kWide == 4, float4, std::conditional_t<kWide == 2, float2, float>>;

  // The i-th of a thread's N rows; `lane` counts the lanes that have different rows.
  __device__ __forceinline__ static int row(int lane, int i) {
    return ALONG_K ? lane + LANES * i : i / kWide * kWide * LANES + kWide * lane + i % kWide;
  }

  // Reads elements q ... q + 3 along k of the thread's rows.
  __device__ __forceinline__ static void read(float (&to)[4][N], const float* panel, int lane, int q) {
    if constexpr (ALONG_K) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(panel + row(lane, i) * kPitch + q);
        to[0][i] = four.x;
        to[1][i] = four.y;
        to[2][i] = four.z;
        to[3][i] = four.w;
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) read(to[j], panel, lane, q + j);
    }
  }

  // Reads one element along k of the thread's rows. Precondition: the rows lie side by side.
  __device__ __forceinline__ static void read(float (&to)[N], const float* panel, int lane, int q) {
    static_assert(!ALONG_K);
#pragma unroll
    for (int i = 0; i < N; i += kWide)
      *reinterpret_cast<Wide*>(&to[i]) = *reinterpret_cast<const Wide*>(panel + q * kPitch + row(lane, i));
  }
};

// Copies an operand's steps of k for a warp, one step after the other. The copies run along contiguous lines, and a
// lane always has the same lines.
template <bool ALONG_K, int N, int LANES>
class WarpReader {
 public:
  using Panel = WarpPanel<ALONG_K, N, LANES>;

  // Starts at `data`, with `stride` from row to row; `rows` of the panel's rows are inside. Steps are `advance`
  // elements apart. `shared` is passed to copy_async.
  __device__ __forceinline__ WarpReader(const float* data, int64_t stride, int64_t k_stride, int rows, bool vector,
                                        bool shared, int64_t advance)
      : vector_(vector), shared_(shared) {
    const int lane = threadIdx.x % 32, first = vector ? 4 * lane : lane;
    const int64_t across = ALONG_K ? stride : k_stride, along = ALONG_K ? k_stride : stride;
    line_ = first / kLength;
    at_ = first % kLength;
    left_ = rows - (ALONG_K ? line_ : at_);
    along_ = along;
    apart_ = across * (vector ? kLinesOfQuads : kLinesOfSingles);
    advance_ = advance * k_stride;
    from_ = data + line_ * across + at_ * along;
    place_ = line_ * Panel::kPitch + at_;
  }

  // Moves to other rows, `distance` elements from the next step; `rows` of them are inside.
  __device__ __forceinline__ void move(int64_t distance, int rows) {
    from_ += distance;
    left_ = rows - (ALONG_K ? line_ : at_);
  }

  // Starts to copy the next step. `depth` of its k are inside; the rest becomes zeros.
  __device__ __forceinline__ void next(float* to, int depth) {
    to += place_;
    const float* from = from_;
    from_ += advance_;
    const int left = ALONG_K ? depth - at_ : left_, lines = ALONG_K ? left_ : depth - line_;
    if (vector_) {
      const int bytes = 4 * max(0, min(4, left));
#pragma unroll
      for (int line = 0; line < kLines; line += kLinesOfQuads, from += apart_)
        copy_async<16>(to + line * Panel::kPitch, from, line < lines ? bytes : 0, shared_);
    } else {
#pragma unroll 4
      for (int line = 0; line < kLines; line += kLinesOfSingles, from += apart_)
#pragma unroll
        for (int i = 0; i < kLength; i += 32)
          copy_async<4>(to + line * Panel::kPitch + i, from + i * along_, line < lines && i < left ? 4 : 0);
    }
  }

 private:
  static constexpr int kLines = ALONG_K ? Panel::kRows : Panel::kDepth;
  static constexpr int kLength = ALONG_K ? Panel::kDepth : Panel::kRows;
  // Lines that a warp copies at once, with 16 bytes or one element per lane.
  static constexpr int kLinesOfQuads = 128 / kLength, kLinesOfSingles = kLength < 32 ? 32 / kLength : 1;
  static_assert(32 % kLength == 0 || kLength == 64, "a lane's copies all begin at the same place of a line");

  bool vector_, shared_;
  int line_, at_, left_, place_;
  int64_t along_, apart_, advance_;
  const float* from_;
};

}  // namespace sgemm::ieee
