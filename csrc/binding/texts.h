// Texts of tensors, for errors and logs.
#pragma once
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>

#include <string>

#include "torch_calls.h"

namespace sgemm {

// "[2, 3]"
std::string sizes_text(torch::headeronly::IntHeaderOnlyArrayRef values);

// "cuda:0"
std::string device_text(const Tensor& tensor);

// "shape [2, 3], strides [3, 1], dtype float32, device cuda:0"
std::string describe(const Tensor& tensor);

[[noreturn]] void fail(const char* op, const std::string& text);

// Fails because of an argument; `accepted`: the accepted values.
[[noreturn]] void reject(const char* op, const char* name, const Tensor& tensor, const std::string& accepted);

}  // namespace sgemm
