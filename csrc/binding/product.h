// A product whose arguments have been checked: choice, workspace, stream, launch.
#pragma once
#include <optional>
#include <string>

#include "torch_calls.h"

namespace sgemm {

// out = f(alpha a b + beta c) by the row that `request` asks for; 2-D or batched. c may be null when beta is 0. If
// there are `planes`, that b was split into, they are used where the request names their row, or allows it and that is
// predicted to be faster.
void product(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
             double beta, const std::string& request, Activation activation = Activation::kNone,
             const Tensor* planes = nullptr);

// Uninitialised, of the product's shape.
Tensor new_output(const Tensor& a, const Tensor& b);

ConstMatrix view(const Tensor& x);

// The fused activation that an operator's argument names.
Activation activation_named(const char* op, const std::optional<std::string>& name);

}  // namespace sgemm
