// Fix-up of a tile whose k is shared by blocks, through device memory. Each block writes its part of the sums, and the
// last to arrive adds all parts up, in the order of k. No block waits for another, so any set of blocks may run at
// once.
#pragma once
#include "ptx/mbarrier.cuh"

namespace sgemm {

// Layout of the N sums that each of THREADS threads writes for a part: (N / 4, THREADS) float4.
template <int THREADS>
struct QuadSums {
  // Number of parts that are read at once: consecutive reads of a few sums would each wait for memory.
  template <int N>
  static constexpr int kAtOnce = N < 32 ? 32 / N : 1;

  template <int N>
  __device__ __forceinline__ static void put(float* part, const float (&sum)[N], int t) {
    float4* const to = reinterpret_cast<float4*>(part) + t;
#pragma unroll
    for (int e = 0; e < N; e += 4) to[e / 4 * THREADS] = make_float4(sum[e], sum[e + 1], sum[e + 2], sum[e + 3]);
  }
  // Adds the first kAtOnce of `count` parts in order.
  template <int N>
  __device__ __forceinline__ static void add(const float* parts, int count, float (&sum)[N], int t) {
    const float4* const from = reinterpret_cast<const float4*>(parts) + t;
    float4 add[kAtOnce<N>][N / 4];
#pragma unroll
    for (int i = 0; i < kAtOnce<N>; ++i) {
      const int part = kAtOnce<N> == 1 ? 0 : min(i, count - 1) * (N / 4);
#pragma unroll
      for (int q = 0; q < N / 4; ++q) add[i][q] = __ldcg(&from[(part + q) * THREADS]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce<N>; ++i) {
      if (i > 0 && i >= count) break;
#pragma unroll
      for (int q = 0; q < N / 4; ++q) {
        sum[4 * q] += add[i][q].x;
        sum[4 * q + 1] += add[i][q].y;
        sum[4 * q + 2] += add[i][q].z;
        sum[4 * q + 3] += add[i][q].w;
      }
    }
  }
};

// Layout (N, THREADS) float. With four-element stores, the FFMA's accumulators would share a register bank with their
// factors.
template <int THREADS>
struct SingleSums {
  template <int N>
  static constexpr int kAtOnce = 1;

  template <int N>
  __device__ __forceinline__ static void put(float* part, const float (&sum)[N], int t) {
#pragma unroll
    for (int e = 0; e < N; ++e) __stcg(part + t + e * THREADS, sum[e]);
  }
  template <int N>
  __device__ __forceinline__ static void add(const float* part, int, float (&sum)[N], int t) {
    constexpr int kReads = 64;  // in flight; consecutive reads would each wait for memory
#pragma unroll
    for (int e = 0; e < N; e += kReads) {
      float add[kReads];
#pragma unroll
      for (int j = 0; j < kReads; ++j) add[j] = __ldcg(part + t + (e + j) * THREADS);
#pragma unroll
      for (int j = 0; j < kReads; ++j) sum[e + j] += add[j];
    }
  }
};

// Adds up a tile with `count` parts at `parts`; this block has part `index`. `arrived` counts parts. `last` is shared
// by the THREADS threads, which meet at barrier 1. Returns true if this part was the last to arrive; then `sum` holds
// the total.
template <template <int> class Sums, int THREADS, int N, class Flag>
__device__ __forceinline__ bool fix_up(float* parts, int index, int count, uint32_t* arrived, float (&sum)[N],
                                       Flag& last, int t) {
  constexpr int kFloats = N * THREADS;
  Sums<THREADS>::put(parts + index * kFloats, sum, t);
  __syncwarp();  // the warp may have diverged
  hopper::sync_some(1, THREADS);
  if (t == 0) last = hopper::arrives_last(arrived, count);
  __syncwarp();
  hopper::sync_some(1, THREADS);
  if (!last) return false;
#pragma unroll
  for (int e = 0; e < N; ++e) sum[e] = 0;
#pragma unroll 1
  for (int i = 0; i < count; i += Sums<THREADS>::template kAtOnce<N>)
    Sums<THREADS>::add(parts + i * kFloats, count - i, sum, t);
  return true;
}

}  // namespace sgemm
