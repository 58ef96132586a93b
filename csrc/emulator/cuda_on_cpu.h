// CUDA C++ vocabulary of the ladder on a host compiler: the same kernel source then runs on the CPU.
//
// A block's threads are fibers of one OS thread and switch at __syncthreads(); blocks are spread over the cores. So a
// __shared__ array is a static one of the OS thread, in which one block runs at a time. The array keeps the values of
// the last block, as shared memory does.
#pragma once
#include <algorithm>
#include <cstdint>

#include "emulator.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define threadIdx emulator::context.thread
#define blockIdx emulator::context.block
#define blockDim emulator::context.block_dim
#define gridDim emulator::context.grid_dim

inline void __syncthreads() { emulator::barrier(); }

namespace emulator {
inline void launch(unsigned blocks, dim3 threads, const Body& body) {
  launch(blocks, Index{threads.x, threads.y, threads.z}, body);
}
}  // namespace emulator
