// sgemm::linear: a layer's product, with bias and activation in the kernel's epilogue.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../table/namespace.h"
#include "boxed.h"
#include "checks.h"
#include "product.h"

namespace sgemm {
namespace {

constexpr std::pair<const char*, Activation> kActivations[] = {{"relu", Activation::kRelu},
                                                               {"gelu", Activation::kGelu},
                                                               {"gelu_tanh", Activation::kGeluTanh},
                                                               {"silu", Activation::kSilu}};

void check_arguments(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  constexpr const char* op = "linear";
  check<Features>(op, "x", x);
  check_operand(op, "x", x, x, static_cast<int>(x.dim()));
  check_operand(op, "weight", weight, x, 2);
  check<ColumnsForFeaturesOf>(op, "weight", weight, x);
  if (!bias) return;
  check_tensor(op, "bias", *bias, x, 1);
  check<BiasOf>(op, "bias", *bias, weight);
}

// Computes the layer. `with_inner`: also returns the input of the activation.
std::pair<Tensor, std::optional<Tensor>> layer(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                               const std::optional<std::string>& name, const std::string& kernel,
                                               bool with_inner) {
  check_arguments(x, weight, bias);
  ProductExtras extras;
  extras.activation = activation_named("linear", name);
  extras.names = {"a matrix of the rows of 'x'", "'weight.t()'"};
  const Tensor rows = rows_of(x),
               transposed = view_as(weight, {weight.size(1), weight.size(0)}, {weight.stride(1), weight.stride(0)});
  const Tensor out = new_output(rows, transposed);
  std::optional<Tensor> inner;
  if (with_inner) extras.inner = &inner.emplace(new_output(rows, transposed));
  product("linear", out, bias ? &*bias : nullptr, rows, transposed, 1, bias ? 1 : 0, kernel, extras);
  if (inner) inner = of_rows(*inner, x);
  return {of_rows(out, x), inner};
}

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::optional<std::string>& activation, const std::string& kernel) {
  return layer(x, weight, bias, activation, kernel, false).first;
}

std::tuple<Tensor, Tensor> linear_with_inner(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                             const std::string& activation, const std::string& kernel) {
  auto [out, inner] = layer(x, weight, bias, activation, kernel, true);
  return {out, *inner};
}

void register_layers(torch::stable::detail::StableLibrary& m) {
  m.impl("linear", SGEMM_BOX(&linear));
  m.impl("_linear_with_inner", SGEMM_BOX(&linear_with_inner));
}

}  // namespace

Tensor rows_of(const Tensor& x) {
  const int64_t last = x.dim() - 1, features = x.size(last);
  int64_t rows = 1, stride = features, expected = 0;  // stride of the rows; expected stride of the next dimension
  bool first = true, regular = true;
  for (int64_t i = last - 1; i >= 0; --i) {
    rows *= x.size(i);
    if (x.size(i) == 1) continue;
    if (first) stride = expected = x.stride(i);
    first = false;
    regular &= x.stride(i) == expected;
    expected *= x.size(i);
  }
  if (regular || rows == 0) return view_as(x, {rows, features}, {stride, x.stride(last)});
  return view_as(torch::stable::contiguous(x), {rows, features}, {features, 1});
}

Tensor of_rows(const Tensor& out, const Tensor& x) {
  if (x.dim() == 2) return out;
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end()), strides(sizes.size(), 1);
  sizes.back() = out.size(1);
  for (size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * std::max<int64_t>(1, sizes[i]);
  return view_as(out, sizes, strides);
}

Activation activation_named(const char* op, const std::optional<std::string>& name) {
  if (!name) return Activation::kNone;
  for (const auto& [known, activation] : kActivations)
    if (*name == known) return activation;
  fail(op, "argument 'activation' is \"" + *name + "\"; accepted: None, \"relu\", \"gelu\", \"gelu_tanh\", \"silu\"");
}

}  // namespace sgemm

STABLE_TORCH_LIBRARY_FRAGMENT(SGEMM_NAMESPACE, m) {
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None, str? activation=None, str kernel=\"auto\") -> Tensor");
  // Also returns the input of the activation, which a backward needs.
  m.def("_linear_with_inner(Tensor x, Tensor weight, Tensor? bias, str activation, str kernel) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CPU, m) { sgemm::register_layers(m); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) { sgemm::register_layers(m); }
