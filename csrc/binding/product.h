// A product whose arguments have been checked: choice, workspace, stream, launch.
#pragma once
#include <string>

#include "torch_calls.h"

namespace sgemm {

// out = f(alpha a b + beta c) by the row that `request` asks for; 2-D or batched. c may be null when beta is 0.
void product(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
             double beta, const std::string& request, Activation activation = Activation::kNone);

// Uninitialised, of the product's shape.
Tensor new_output(const Tensor& a, const Tensor& b);

}  // namespace sgemm
