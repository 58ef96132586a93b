// The operators' calls to PyTorch, only through its stable C interface.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <stdexcept>
#include <vector>

#include "../problem/problem.h"

namespace sgemm {

using torch::stable::Tensor;

// A call to PyTorch failed. Its message went to stderr, because the C interface does not return it.
struct TorchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// PyTorch's allocator has no memory.
struct NoMemory : TorchError {
  using TorchError::TorchError;
};

// Size in bytes from which tensors are allocated through an operator of ours in Python. PyTorch's C interface prints
// every failed allocation, even if the caller can do without the memory. let_python_allocate() enables this operator.
constexpr int64_t kAllocatedByPython = int64_t{64} << 20;
void let_python_allocate();

// Returns an uninitialised contiguous float32 tensor on the device of `like`, from PyTorch's allocator. Throws
// NoMemory; the functions below throw TorchError if PyTorch refuses.
Tensor empty(std::initializer_list<int64_t> sizes, const Tensor& like);

// The same with the product's shape and a's dtype.
Tensor empty_like_product(const Tensor& a, const Tensor& b);

// Returns a view of the same memory with these sizes and strides.
Tensor view_as(const Tensor& tensor, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

// Returns the stream that PyTorch uses on the device; null on the CPU.
Stream current_stream(const Tensor& tensor);

// Computes out = alpha a b + beta c with PyTorch's own kernel, below the dispatcher, 2-D or batched. Without c,
// computes out = a b, also for batches of two dimensions; they are copied if one stride doesn't describe them. `out`
// must then be contiguous.
void aten_product(const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha, double beta);

// Increments the tensor's version, as PyTorch's in-place operators do, so that autograd and packed operands notice the
// change. Throws TorchError for a leaf that requires grad, and for an inference tensor outside of inference mode.
void count_change(const Tensor& tensor);

// Computes out = f(x) with PyTorch's own activation; x may be `out`.
void aten_activation(const Tensor& out, const Tensor& x, Activation activation);

// A range that torch.profiler shows while this object lives; it costs 30 ns without a profiler. The name must outlive
// it.
class ProfiledRange {
 public:
  explicit ProfiledRange(const char* name);
  ~ProfiledRange();
  ProfiledRange(const ProfiledRange&) = delete;

 private:
  AtenRecordFunctionHandle handle_ = nullptr;
};

}  // namespace sgemm
