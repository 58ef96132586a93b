// A product whose arguments have been checked: choice, workspace, stream, launch.
#pragma once
#include <optional>
#include <string>

#include "../kernels.h"
#include "torch_calls.h"

namespace sgemm {

// out = f(alpha a b + beta c) by the row that `request` asks for; 2-D or batched. c may be null when beta is 0. If
// there are `planes`, that b was split into, rows that take them use them.
void product(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
             double beta, const std::string& request, Activation activation = Activation::kNone,
             const Tensor* planes = nullptr);

// Uninitialised, of the product's shape.
Tensor new_output(const Tensor& a, const Tensor& b);

ConstMatrix view(const Tensor& x);

Backend backend(DeviceType type);

// The fused activation that an operator's argument names.
Activation activation_named(const char* op, const std::optional<std::string>& name);

}  // namespace sgemm
