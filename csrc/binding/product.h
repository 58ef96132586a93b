// A product with checked arguments: choice, workspace, stream, launch.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "../table/backend.h"
#include "../table/choice_cache.h"
#include "torch_calls.h"

namespace sgemm {

// Names of the operands in error messages.
struct OperandNames {
  const char* a = "'a'";
  const char* b = "'b'";
};

// Arguments that few products use.
struct ProductExtras {
  Activation activation = Activation::kNone;  // f
  const Tensor* planes = nullptr;             // planes of a split b, for rows that take them
  const Tensor* inner = nullptr;              // receives the input of f; `out` has the same bits as without
  const char* written = nullptr;              // name of the argument `out`; if set, the change is reported to autograd
  OperandNames names;
};
inline ProductExtras writes(const char* argument) {
  ProductExtras extras;
  extras.written = argument;
  return extras;
}

// Computes out = f(alpha a b + beta c) with the row that `request` selects; 2-D or batched. c may be null if beta is 0.
void product(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
             double beta, const std::string& request, const ProductExtras& extras = {});

// Returns an uninitialised tensor of the product's shape.
Tensor new_output(const Tensor& a, const Tensor& b);

// Returns x (..., k) as a matrix of its rows, without a copy if strides allow it; and the rows' results (rows, n) in
// the shape (..., n).
Tensor rows_of(const Tensor& x);
Tensor of_rows(const Tensor& out, const Tensor& x);

ConstMatrix view(const Tensor& x);

// The steps of product(), for callers that need them separately.
Backend backend(DeviceType type);
const Device& device_of(const Tensor& x);
const Device& device_of_index(int index);  // a CUDA device
Device device_from(const char* op, const std::vector<int64_t>& numbers,
                   const std::string& name);  // in the encoding of _device
Problem problem(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
                double beta);  // c may be null if beta is 0
const Choice& chosen(const char* op, const Table& table, const Problem& p, const Device& device,
                     const std::string& request, const Tensor& a, const Tensor& b, const OperandNames& names = {});
// Launches a row on the device and stream of `out`, which is D, with a workspace from PyTorch.
void launch(const Backend& rows, const Kernel& kernel, const Problem& p, const Plan& plan, const Device& device,
            const Tensor& out, const Tensor* activated = nullptr);

// Returns the fused activation that an operator's argument names.
Activation activation_named(const char* op, const std::optional<std::string>& name);

}  // namespace sgemm
