// Tensor maps of operands, for copies of a tile's rows x 32 of k.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "job.h"

namespace sgemm::split {

constexpr int64_t kMaxExtent = int64_t{1} << 31, kMaxBytes = int64_t{1} << 40;

// The driver's function, by way of the runtime: the library is not linked to libcuda.
inline decltype(&cuTensorMapEncodeTiled) encode_tensor_map() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status);
#endif
    if (!found)
      throw std::runtime_error("torch_sgemm: the CUDA driver has no cuTensorMapEncodeTiled (12.0 or later is needed)");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

// Whether there can be one, with `depth` of k.
inline bool can_be_mapped(const Operand& x, int64_t depth) {
  const auto fits = [](int64_t stride) { return stride > 0 && 4 * stride < kMaxBytes; };
  return x.aligned() && fits(x.across()) && (x.count == 1 || fits(x.batch.stride)) &&
         (x.batch.group == 0 || fits(x.batch.group_stride)) && x.size < kMaxExtent && depth > 0 && depth < kMaxExtent;
}

// (neighbours, rows or k, matrices of a group, groups) of float32, with `depth` of k; zeros outside. Copies are of
// `rows`. Throws std::runtime_error if the driver refuses.
inline CUtensorMap tensor_map(const Operand& x, int64_t depth, int rows) {
  const uint64_t matrices = x.count, group = x.batch.group && x.batch.group < matrices ? x.batch.group : matrices;
  const auto bytes = [](int64_t stride, uint64_t count) { return count > 1 ? 4 * uint64_t(stride) : 16; };
  const uint64_t extents[] = {uint64_t(x.along_k ? depth : x.size), uint64_t(x.along_k ? x.size : depth), group,
                              matrices / group};
  const uint64_t bytes_apart[] = {4 * uint64_t(x.across()), bytes(x.batch.stride, group),
                                  bytes(x.batch.group_stride, matrices / group)};
  const uint32_t box[] = {uint32_t(x.along_k ? kStep : rows), uint32_t(x.along_k ? rows : kStep), 1, 1};
  const uint32_t every[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_tensor_map()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, const_cast<float*>(x.data), extents, bytes_apart,
                          box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("torch_sgemm: cuTensorMapEncodeTiled failed with CUDA error " + std::to_string(result));
  return map;
}

}  // namespace sgemm::split
