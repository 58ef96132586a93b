// Tensor maps of matrices of float32 or 16-bit elements, for bulk copies of boxes; elements outside read as zeros.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "../problem/views.h"

namespace sgemm {

// The maps of both operands.
struct OperandMaps {
  CUtensorMap a, b;
  int64_t count_a, count_b;  // matrices in memory: 1 if the batch shares one
};

namespace hopper {

// Fetches the driver's function through the runtime, because the library is not linked to libcuda.
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

// Makes the device's context current in this thread, which the driver's functions need. The runtime does so at a
// thread's first launch, for example, or in cudaSetDevice.
inline void make_context_current() {
  int device;
  if (cudaGetDevice(&device) == cudaSuccess) cudaSetDevice(device);
}

// Makes a map of (columns, rows, matrices of a group, groups) for `count` matrices in memory. Precondition:
// can_be_mapped(). Copies are boxes of `cols` x `rows`. `swizzled`: `cols` are 128 bytes, in the order of wgmma's
// descriptors. Throws std::runtime_error if the driver refuses.
template <class T>
CUtensorMap tensor_map(const MatrixView<T>& x, int64_t count, int cols, int rows, bool swizzled = false) {
  constexpr CUtensorMapDataType kType =
      sizeof(T) == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const uint64_t matrices = count, group = x.batch.group && x.batch.group < matrices ? x.batch.group : matrices;
  const auto bytes = [](int64_t stride, uint64_t count) { return count > 1 ? sizeof(T) * uint64_t(stride) : 16; };
  const uint64_t extents[] = {uint64_t(x.cols), uint64_t(x.rows), group, matrices / group};
  const uint64_t bytes_apart[] = {sizeof(T) * uint64_t(x.row), bytes(x.batch.stride, group),
                                  bytes(x.batch.group_stride, matrices / group)};
  const uint32_t box[] = {uint32_t(cols), uint32_t(rows), 1, 1};
  const uint32_t every[] = {1, 1, 1, 1};
  CUtensorMap map;
  const auto encode = [&] {
    return encode_tensor_map()(&map, kType, 4, const_cast<std::remove_const_t<T>*>(x.data), extents, bytes_apart, box,
                               every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = encode();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    make_context_current();
    result = encode();
  }
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("torch_sgemm: cuTensorMapEncodeTiled failed with CUDA error " + std::to_string(result));
  return map;
}

// Coordinates of a batch entry in a map.
struct MapPlace {
  int matrix, group;
};
__device__ __forceinline__ MapPlace place_in_map(const BatchStride& batch, int64_t count, int entry) {
  const int size = batch.group, group = size ? entry / size : 0;
  return {count == 1 ? 0 : entry - group * size, group};
}

}  // namespace hopper
}  // namespace sgemm
