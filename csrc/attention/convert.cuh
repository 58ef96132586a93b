// Splits keys and values into planes, a block of 32 KiB at a time, with one scale for each block.
//
// Bound: memory: 4 bytes per element in, 4 out.
#pragma once
#include "shape.cuh"

namespace sgemm::attention {

constexpr int kConvertThreads = 256;

// Reads four neighbours of a row; zeros outside of the matrix.
__device__ __forceinline__ float4 load_quad(const ConstMatrix& x, int64_t row, int col, bool aligned) {
  if (!x.contains(row, col)) return make_float4(0, 0, 0, 0);  // columns are multiples of 8
  const float* const at = x.at(row, col);
  if (aligned) return *reinterpret_cast<const float4*>(at);
  return make_float4(at[0], at[1], at[2], at[3]);
}

// A block of threads for each block of K, then for each of V.
template <class S>
__global__ void __launch_bounds__(kConvertThreads)
    convert(const __grid_constant__ Job job, bool aligned_k, bool aligned_v) {
  constexpr int kQuadsOfThread = S::kKeys * S::kQuads / kConvertThreads;
  __shared__ uint32_t largest_of_warp[kConvertThreads / 32];
  const bool values = blockIdx.x >= job.blocks, aligned = values ? aligned_v : aligned_k;
  const int t = threadIdx.x, block = values ? blockIdx.x - job.blocks : blockIdx.x;
  const int group = block / job.blocks_of_group, first = block % job.blocks_of_group * S::kKeys;
  const ConstMatrix x = (values ? job.p.v : job.p.k).matrix(group);
  hopper::wait_for_predecessor();
  hopper::launch_dependents();
  float4 quads[kQuadsOfThread];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kQuadsOfThread; ++i) {
    const int index = i * kConvertThreads + t;
    quads[i] = load_quad(x, first + index / S::kQuads, index % S::kQuads * 4, aligned);
  }
#pragma unroll
  for (int i = 0; i < kQuadsOfThread; ++i) largest = max(largest, largest_of(quads[i]));
  largest = __reduce_max_sync(~0u, largest);
  if (t % 32 == 0) largest_of_warp[t / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kConvertThreads / 32; ++i) largest = max(largest, largest_of_warp[i]);
  const bool finite = largest < split::kInfinity;
  const int exponent = finite ? split::row_exponent<split::Fp16x3>(largest) : 0;
  const float factor = split::power_of_two(-exponent);
  char* const planes = (values ? job.v : job.k) + int64_t{block} * kBlockBytes;
#pragma unroll
  for (int i = 0; i < kQuadsOfThread; ++i) {
    const int index = i * kConvertThreads + t;
    store_quad(planes, S::kPlane, S::kKeys, index / S::kQuads, index % S::kQuads, quads[i], factor);
  }
  const float scale = finite ? split::power_of_two(exponent) : kRecompute;
  if (t == 0) (values ? job.v_scales : job.k_scales)[block] = make_float4(scale, 0, 0, 0);
}

}  // namespace sgemm::attention
