// Grid layouts and kernel launches, with the same interface in both builds.
#pragma once
#include <stdexcept>
#include <string>

#include "../problem/problem.h"
#include "build.h"

namespace sgemm::SGEMM_BACKEND {

// Position of a block's tile in C: its first row and column.
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
// Throws if a CUDA call has failed, and clears the error, which the next cudaGetLastError() would otherwise return.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string("sgemm: ") + what + ": " + cudaGetErrorString(status));
}

// Launches in clusters of `cluster` blocks; 0 if the GPU may lack clusters. `overlapping`: programmatic dependent
// launch, so the kernel itself must wait for its predecessor.
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

// Programmatic dependent launch (sm_90+): the kernel must call wait_for_predecessor() before it reads the predecessor's
// output.
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

// Calls `run` with `index` as a compile-time constant, one of COUNT from FIRST on; or with a flag as a constant.
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

// Launches one block per tile of C.
template <class... Params>
void launch_tiles(void (*kernel)(Params...), int bm, int bn, dim3 threads, const Problem& p, const Context& context) {
  const int64_t blocks = ceil_div(p.m, bm) * ceil_div(p.n, bn) * p.batch;
  launch_blocks(kernel, static_cast<unsigned>(blocks), threads, context.stream, p);
}

}  // namespace sgemm::SGEMM_BACKEND
