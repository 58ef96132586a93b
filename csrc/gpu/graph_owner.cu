#include "graph_owner.h"

#include <stdexcept>

#include "launch.h"

namespace sgemm {
namespace {

// Returns null if the stream is not being captured.
cudaGraph_t captured_graph(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  const cudaError_t found = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr);
#else
  const cudaError_t found = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr);
#endif
  cuda_backend::check(found, "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? graph : nullptr;
}

}  // namespace

void give_to_graph(Stream stream, void* object, void (*release)(void*)) {
  cudaUserObject_t owned;
  cudaGraph_t graph;
  try {
    graph = captured_graph(static_cast<cudaStream_t>(stream));
    if (!graph) throw std::runtime_error("sgemm: the current stream is not being captured into a graph");
    cuda_backend::check(cudaUserObjectCreate(&owned, object, release, 1, cudaUserObjectNoDestructorSync),
                        "cudaUserObjectCreate");
  } catch (...) {
    release(object);
    throw;
  }
  const cudaError_t moved = cudaGraphRetainUserObject(graph, owned, 1, cudaGraphUserObjectMove);
  if (moved == cudaSuccess) return;
  cudaUserObjectRelease(owned, 1);  // the only reference: this calls `release`
  cuda_backend::check(moved, "cudaGraphRetainUserObject");
}

}  // namespace sgemm
