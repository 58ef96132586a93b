// Reads the counters of recomputed elements and tiles.
#pragma once
#include "../../gpu/launch_cluster.cuh"
#include "../../gpu/private_stream.h"
#include "../../problem/redone.h"
#include "../redo/redone.cuh"

namespace sgemm::split {

// Returns the counters of the including file's kernels, without waiting for work in progress.
static Redone redone_here() {
  const PrivateStream copies;
  unsigned long long values[2];
  check(cudaMemcpyFromSymbolAsync(&values[0], redone_elements, 8, 0, cudaMemcpyDeviceToHost, copies.stream), "copy");
  check(cudaMemcpyFromSymbolAsync(&values[1], redone_tiles, 8, 0, cudaMemcpyDeviceToHost, copies.stream), "copy");
  check(cudaStreamSynchronize(copies.stream), "cudaStreamSynchronize");
  return {values[0], values[1]};
}

}  // namespace sgemm::split
