// A product whose arguments have been checked: choice, workspace, stream, launch.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "../table/choice_cache.h"
#include "../table/backend.h"
#include "torch_calls.h"

namespace sgemm {

// What messages call the operands.
struct OperandNames {
  const char* a = "'a'";
  const char* b = "'b'";
};

// What few products have.
struct ProductExtras {
  Activation activation = Activation::kNone;  // f
  const Tensor* planes = nullptr;             // that b was split into, for rows that take them
  const Tensor* inner = nullptr;              // gets what goes into f; `out` has the same bits as without
  const char* written = nullptr;              // the argument that `out` is, of which autograd is told then
  OperandNames names;
};
inline ProductExtras writes(const char* argument) {
  ProductExtras extras;
  extras.written = argument;
  return extras;
}

// out = f(alpha a b + beta c) by the row that `request` asks for; 2-D or batched. c may be null when beta is 0.
void product(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
             double beta, const std::string& request, const ProductExtras& extras = {});

// Uninitialised, of the product's shape.
Tensor new_output(const Tensor& a, const Tensor& b);

ConstMatrix view(const Tensor& x);

// The parts of product(), for who takes them one by one.
Backend backend(DeviceType type);
const Device& device_of(const Tensor& x);
const Device& device_of_index(int index);  // a CUDA device
Device device_from(const char* op, const std::vector<int64_t>& numbers,
                   const std::string& name);  // as _device tells it
Problem problem(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
                double beta);  // c may be null when beta is 0
// `planes` are what pack() returned for b.
void check_planes(const char* op, const Tensor& planes, const Tensor& b);
const Choice& chosen(const char* op, const Table& table, const Problem& p, const Device& device,
                     const std::string& request, const Tensor& a, const Tensor& b, const OperandNames& names = {});
// As run(), on the device and stream of `out`, which is D.
void launch(const Backend& rows, const Kernel& kernel, const Problem& p, const Plan& plan, const Device& device,
            const Tensor& out, const Tensor* activated = nullptr);

// The fused activation that an operator's argument names.
Activation activation_named(const char* op, const std::optional<std::string>& name);

}  // namespace sgemm
