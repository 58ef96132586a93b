// The calls that the operators make to PyTorch, through its stable C interface only.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <stdexcept>
#include <vector>

#include "../problem/problem.h"

namespace sgemm {

using torch::stable::Tensor;

// A call of PyTorch's failed; what it said went to stderr, for its C interface passes on no more.
struct TorchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// PyTorch's allocator has no memory.
struct NoMemory : TorchError {
  using TorchError::TorchError;
};

// PyTorch's C interface prints what it can't allocate, even where the caller then does without. From this size on a
// Python function takes its place, an operator of ours, once Python has said that there is one.
constexpr int64_t kAllocatedByPython = int64_t{64} << 20;
void let_python_allocate();

// An uninitialised contiguous float32 tensor on the device of `like`, from PyTorch's allocator. Throws NoMemory; those
// below throw TorchError if PyTorch refuses.
Tensor empty(std::initializer_list<int64_t> sizes, const Tensor& like);

// The same of the product's shape and of a's dtype.
Tensor empty_like_product(const Tensor& a, const Tensor& b);

// The same memory seen as a tensor of these sizes and strides.
Tensor view_as(const Tensor& tensor, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

// The stream that PyTorch is using on the device; null on the CPU.
Stream current_stream(const Tensor& tensor);

// PyTorch's own kernel, below the dispatcher: out = alpha a b + beta c, 2-D or batched. Without c: out = a b, also for
// batches of two dimensions, which are copied where one stride doesn't do; `out` is contiguous then.
void aten_product(const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha, double beta);

// Counts a change of the tensor, as PyTorch's operators do that write: whoever has saved it, for a backward or beside
// what was packed of it, sees that. Throws TorchError for a leaf that requires grad, and for an inference tensor
// outside of inference mode.
void count_change(const Tensor& tensor);

// PyTorch's own activation: out = f(x); x may be `out`.
void aten_activation(const Tensor& out, const Tensor& x, Activation activation);

// A range that torch.profiler shows while it lives; 30 ns where no profiler runs. The name has to outlive it.
class ProfiledRange {
 public:
  explicit ProfiledRange(const char* name);
  ~ProfiledRange();
  ProfiledRange(const ProfiledRange&) = delete;

 private:
  AtenRecordFunctionHandle handle_ = nullptr;
};

}  // namespace sgemm
