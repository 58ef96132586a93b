// Held: the elements that a thread of the convert kernel keeps in shared memory until the scales of its rows are known.
#pragma once
#include "../../gpu/ptx/async_copy.cuh"
#include "../plan/job.h"

namespace sgemm::split {

constexpr int kHeld = 8;        // float4s per thread
constexpr int kStripQuads = 8;  // quads of columns per strip
constexpr int kStrip = 4 * kStripQuads;
constexpr int kMaxCluster = 8;
template <int THREADS>
constexpr int kStripApart = THREADS / kStripQuads;  // k from one quad of a thread to the next, in a strip

// A thread's quads of neighbours in shared memory, which only its warp uses. Loops are short, because a block runs each
// loop once and waits for its instructions. FLOAT32: all elements are float32.
template <int THREADS, bool FLOAT32>
class Held {
 public:
  static constexpr int kBytes = kHeld * THREADS * 16;

  // The quads begin at (mn, q), `k_apart` apart along k, up to `end`. Elements outside the operand are zeros. Only
  // read() touches memory.
  __device__ __forceinline__ Held(float4* quads, const Operand& x, int64_t batch, int64_t mn, int q, int k_apart,
                                  int64_t depth, int end)
      : count(min(kHeld, (end - q + k_apart - 1) / k_apart)),  // at most 0 if q is beyond the end
        quads_(quads),
        data_(x.data),
        from_(FLOAT32 ? x.data + x.batch.offset(batch) + mn * x.stride + q * x.k_stride : x.at(batch, mn, q).data),
        elements_(x.elements),
        apart_(k_apart * x.k_stride),
        neighbour_(x.neighbour()),
        rows_(x.size - mn),
        k_left_(static_cast<int>(depth) - q),
        k_apart_(k_apart),
        along_k_(x.along_k),
        vector_(x.vector) {}

  __device__ __forceinline__ void read() const {
    if (!FLOAT32 && elements_ != ElementType::kFloat32) {
      convert_elements();
    } else if (vector_) {
      const float* from = from_;
      int k_left = k_left_;
#pragma unroll 1
      for (int j = 0; j < count; ++j, from += apart_, k_left -= k_apart_) {
        const bool inside = rows_ > 0 && k_left > 0;
        copy_async<16>(reinterpret_cast<float*>(quads_ + j * THREADS), inside ? from : data_, inside ? 16 : 0);
      }
    } else {
      read_elements();
    }
    commit_copies();
  }

  __device__ __forceinline__ float4 operator[](int j) const { return quads_[j * THREADS]; }
  __device__ __forceinline__ float4* quads() const { return quads_; }

  const int count;

 private:
  // Copies element by element. Four neighbouring lanes copy the four elements of a quad. A copy instruction then
  // touches a fourth as many cache lines as if each lane copied its own quad.
  __device__ __forceinline__ void read_elements() const {
    const int lane = threadIdx.x % 32, element = lane % 4;
    const float* from[4];
    int k_left[4];  // 0 if the row is outside
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int owner = 8 * e + lane / 4;
      const auto from_ints = reinterpret_cast<uintptr_t>(from_);
      from[e] = reinterpret_cast<const float*>(__shfl_sync(~0u, from_ints, owner)) + element * neighbour_;
      const int k = __shfl_sync(~0u, k_left_, owner) - (along_k_ ? element : 0);
      k_left[e] = __shfl_sync(~0u, rows_, owner) > (along_k_ ? 0 : element) ? k : 0;
    }
    float* const to = reinterpret_cast<float*>(quads_ - lane + lane / 4) + element;
    const int most = __reduce_max_sync(~0u, count);
#pragma unroll 1
    for (int j = 0; j < most; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool inside = k_left[e] > 0;
        copy_async<4>(to + 4 * (j * THREADS + 8 * e), inside ? from[e] : data_, inside ? 4 : 0);
        from[e] += apart_;
        k_left[e] -= k_apart_;
      }
    }
  }

  // Converts 16-bit elements: each thread reads its own quads, four at once.
  __device__ __forceinline__ void convert_elements() const {
    const ElementPointer from = {from_, elements_};
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int j = 0; j < count; j += kAtOnce) {
      float x[4 * kAtOnce];
      const auto inside = [&](int i) {
        const int quad = j + i / 4, e = i % 4;
        return quad < count && rows_ > (along_k_ ? 0 : e) && k_left_ - quad * k_apart_ > (along_k_ ? e : 0);
      };
      if (vector_)
        read_fours(x, from + j * apart_, apart_, [&](int quad) { return inside(4 * quad); });
      else
        sgemm::read_elements(
            x, from + j * apart_, [&](int i) { return i / 4 * apart_ + i % 4 * neighbour_; }, inside);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (j + i < count) quads_[(j + i) * THREADS] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
  }

  float4* const quads_;
  const float *const data_, *const from_;
  const ElementType elements_;
  const int64_t apart_, neighbour_, rows_;
  const int k_left_, k_apart_;
  const bool along_k_, vector_;
};

// Position of a thread's quads in the planes. A quad is four neighbours along k in row `r` of a panel, or the four rows
// from `r` on at one k. The first quad is at k = `q`, the others follow `apart` apart.
struct Place {
  int64_t panel;  // index among the panels of all matrices
  int r, q, apart;
};

}  // namespace sgemm::split
