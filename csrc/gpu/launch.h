// How a kernel's grid is laid out and launched, the same for both builds.
#pragma once
#include <stdexcept>
#include <string>

#include "../problem/problem.h"
#include "build.h"

namespace sgemm::SGEMM_BACKEND {

// Where a block's tile of C begins.
struct Tile {
  int64_t batch, row, col;
};

// The grid has one dimension, because y and z end at 65535 blocks: tiles along n, then m, then the batch.
template <class T>
__device__ inline Tile block_tile(const MatrixView<T>& d, int bm, int bn) {
  const unsigned tiles_n = static_cast<unsigned>((d.cols + bn - 1) / bn);
  const unsigned tiles_m = static_cast<unsigned>((d.rows + bm - 1) / bm);
  const unsigned row = blockIdx.x / tiles_n;
  return {row / tiles_m, int64_t{row % tiles_m} * bm, int64_t{blockIdx.x % tiles_n} * bn};
}

#if defined(__CUDACC__)
// Takes the error away from where whoever calls cudaGetLastError() next would find it.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string("sgemm: ") + what + ": " + cudaGetErrorString(status));
}

// In clusters of `cluster` blocks; 0 where the GPU may have none. `overlapping`: the kernel may start before the one in
// front has ended; it waits for it by itself.
template <class... Params>
void launch(void (*kernel)(Params...), int64_t blocks, dim3 threads, int shared_bytes, int cluster, bool overlapping,
            Stream stream, const Params&... params) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (cluster) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (overlapping) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, params...), "launch");
}

template <class... Params>
void launch_blocks(void (*kernel)(Params...), unsigned blocks, dim3 threads, Stream stream, const Params&... params) {
  launch(kernel, blocks, threads, 0, 0, false, stream, params...);
}

// The kernel overlaps the one in front, where GPUs can and its code waits for that.
template <class... Params>
void launch_overlapping(void (*kernel)(Params...), int64_t blocks, dim3 threads, const Context& context,
                        const Params&... params) {
  launch(kernel, blocks, threads, 0, 0, context.device->code_arch >= 90, context.stream, params...);
}
#else
template <class... Params>
void launch_blocks(void (*kernel)(Params...), unsigned blocks, dim3 threads, Stream, const Params&... params) {
  emulator::launch(blocks, threads, [&] { kernel(params...); });
}

template <class... Params>
void launch_overlapping(void (*kernel)(Params...), int64_t blocks, dim3 threads, const Context& context,
                        const Params&... params) {
  launch_blocks(kernel, static_cast<unsigned>(blocks), threads, context.stream, params...);
}
#endif

// Calls `run` with an index as a constant, one of COUNT from FIRST on; or with a flag.
template <int COUNT, int FIRST = 0, class Run>
void with_constant(int index, const Run& run) {
  if constexpr (COUNT > 1)
    if (index != FIRST) return with_constant<COUNT - 1, FIRST + 1>(index, run);
  run(std::integral_constant<int, FIRST>());
}
template <class Run>
void with_constant(bool flag, const Run& run) {
  flag ? run(std::true_type()) : run(std::false_type());
}

// One block per tile of C.
template <class... Params>
void launch_tiles(void (*kernel)(Params...), int bm, int bn, dim3 threads, const Problem& p, const Context& context) {
  const int64_t blocks = ceil_div(p.m, bm) * ceil_div(p.n, bn) * p.batch;
  launch_blocks(kernel, static_cast<unsigned>(blocks), threads, context.stream, p);
}

}  // namespace sgemm::SGEMM_BACKEND
