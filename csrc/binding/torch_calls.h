// What the operators ask of PyTorch, through its stable C interface only.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>

#include "../gemm.h"

namespace sgemm {

using torch::stable::Tensor;

// An uninitialised contiguous float32 tensor on the device of `like`, from PyTorch's allocator.
Tensor empty(std::initializer_list<int64_t> sizes, const Tensor& like);

// The stream that PyTorch is using on the device; null on the CPU.
Stream current_stream(const Tensor& tensor);

// PyTorch's own kernel, below the dispatcher: out = alpha a b + beta c, 2-D or batched. Without c: out = a b.
void aten_product(const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha, double beta);

}  // namespace sgemm
