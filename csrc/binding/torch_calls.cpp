#include "torch_calls.h"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../table/namespace.h"
#include "texts.h"

namespace sgemm {
namespace {

using torch::headeronly::ScalarType;

std::atomic<bool> python_allocates{false};

// Looks up a function of libtorch_cuda, when the first CUDA tensor arrives. Linking the functions would prevent loading
// the library into a PyTorch without CUDA.
void* cuda_function(const char* name) {
  static void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* function = library ? dlsym(library, name) : nullptr;
  if (!function) throw std::runtime_error(std::string("sgemm: this PyTorch has no ") + name);
  return function;
}

void check(AOTITorchError status, const char* what) {
  if (status != AOTI_TORCH_SUCCESS) throw TorchError(std::string("sgemm: PyTorch's ") + what + " failed");
}

using Product = decltype(&aoti_torch_cpu_mm_out);
using SumOfProduct = decltype(&aoti_torch_cpu_addmm_out);

// PyTorch's own products, for matrices and for batches.
struct CudaProducts {
  Product product[2] = {reinterpret_cast<Product>(cuda_function("aoti_torch_cuda_mm_out")),
                        reinterpret_cast<Product>(cuda_function("aoti_torch_cuda_bmm_out"))};
  SumOfProduct sum[2] = {reinterpret_cast<SumOfProduct>(cuda_function("aoti_torch_cuda_addmm_out")),
                         reinterpret_cast<SumOfProduct>(cuda_function("aoti_torch_cuda_baddbmm_out"))};
};

const CudaProducts& cuda_products() {
  static const CudaProducts products;
  return products;
}

// Allocates through a Python function (torch_sgemm/torch_ops/library.py). Returns nothing if there is no memory.
std::optional<Tensor> allocated_by_python(int64_t elements, ScalarType dtype, const Tensor& like) {
  static const std::string name = std::string(kOperators) + "_allocate";
  const int64_t index = like.is_cuda() ? like.get_device_index() : -1;
  std::array<StableIValue, 3> stack = {torch::stable::detail::from(elements), torch::stable::detail::from(dtype),
                                       torch::stable::detail::from(index)};
  check(torch_call_dispatcher(name.c_str(), "", stack.data(), TORCH_ABI_VERSION), "_allocate");
  return torch::stable::detail::to<std::optional<Tensor>>(stack[0]);
}

// Throws NoMemory in PyTorch's words, which programs search for before they retry with smaller sizes.
[[noreturn]] void fail_to_allocate(int64_t bytes, bool cuda) {
  const std::string tried = std::to_string(bytes) + " bytes";
  throw NoMemory(cuda ? "CUDA out of memory. Tried to allocate " + tried + " for a product of torch_sgemm."
                      : "DefaultCPUAllocator: can't allocate memory: you tried to allocate " + tried +
                            " for a product of torch_sgemm.");
}

// Returns a contiguous tensor on the device of `like`.
Tensor empty(const int64_t* sizes, size_t dims, ScalarType dtype, size_t element_bytes, const Tensor& like) {
  std::vector<int64_t> strides(dims);
  int64_t elements = 1, bytes;
  bool fits = true;
  for (size_t i = dims; i-- > 0;) {
    strides[i] = elements;
    fits &= !__builtin_mul_overflow(elements, std::max<int64_t>(1, sizes[i]), &elements);
  }
  if (std::find(sizes, sizes + dims, 0) != sizes + dims) elements = 0;
  if (!fits || __builtin_mul_overflow(elements, static_cast<int64_t>(element_bytes), &bytes))
    throw TorchError("sgemm: storage size calculation overflowed with sizes=" + sizes_text({sizes, dims}));
  if (bytes >= kAllocatedByPython && python_allocates) {
    const auto flat = allocated_by_python(elements, dtype, like);
    if (!flat) fail_to_allocate(bytes, like.is_cuda());
    return view_as(*flat, {sizes, sizes + dims}, strides);
  }
  int32_t type, index;
  check(aoti_torch_get_device_type(like.get(), &type), "device type");
  check(aoti_torch_get_device_index(like.get(), &index), "device index");
  AtenTensorHandle handle;
  if (aoti_torch_empty_strided(static_cast<int64_t>(dims), sizes, strides.data(),
                               torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)), type, index,
                               &handle) != AOTI_TORCH_SUCCESS)
    fail_to_allocate(bytes, like.is_cuda());
  return Tensor(handle);
}

// Computes out = alpha * sum + beta * c on the CPU; c broadcasts. PyTorch's kernels multiply the elements by alpha
// before they add them up, so an infinite alpha would give Inf - Inf.
void add_scaled(const Tensor& out, const Tensor& sum, const Tensor& c, float alpha, float beta) {
  const int64_t dims = out.dim(), missing = dims - c.dim();
  std::vector<int64_t> index(dims);
  const auto at = [&](const Tensor& x, int64_t skipped) {
    int64_t offset = 0;
    for (int64_t i = skipped; i < dims; ++i)
      if (x.size(i - skipped) > 1) offset += index[i] * x.stride(i - skipped);
    return offset;
  };
  const float *from = static_cast<const float*>(sum.const_data_ptr()),
              *add = static_cast<const float*>(c.const_data_ptr());
  float* const to = static_cast<float*>(out.mutable_data_ptr());
  for (int64_t left = out.numel(); left > 0; --left) {
    const float scaled = alpha * from[at(sum, 0)];
    to[at(out, 0)] = beta == 0 ? scaled : std::fma(beta, add[at(c, missing)], scaled);
    for (int64_t i = dims - 1; i >= 0 && ++index[i] == out.size(i); --i) index[i] = 0;
  }
}

}  // namespace

void let_python_allocate() { python_allocates = true; }

Tensor empty(std::initializer_list<int64_t> sizes, const Tensor& like) {
  return empty(sizes.begin(), sizes.size(), ScalarType::Float, sizeof(float), like);
}

Tensor empty_like_product(const Tensor& a, const Tensor& b) {
  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(b.dim() - 1);
  return empty(sizes.data(), sizes.size(), a.scalar_type(), a.element_size(), a);
}

Tensor view_as(const Tensor& tensor, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  AtenTensorHandle handle;
  check(aoti_torch__reinterpret_tensor(tensor.get(), static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                                       /*offset beyond the tensor's own=*/0, &handle),
        "view");
  return Tensor(handle);
}

Stream current_stream(const Tensor& tensor) {
  if (!tensor.is_cuda()) return nullptr;
  static const auto get =
      reinterpret_cast<AOTITorchError (*)(int32_t, void**)>(cuda_function("aoti_torch_get_current_cuda_stream"));
  void* stream;
  check(get(tensor.get_device_index(), &stream), "current stream");
  return stream;
}

void aten_product(const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha, double beta) {
  if (out.dim() == 4) {
    const auto flat = [](const Tensor& x) { return torch::stable::flatten(x, 0, 1); };
    return aten_product(flat(out), c, flat(a), flat(b), alpha, beta);
  }
  const bool cuda = out.is_cuda(), batched = out.dim() == 3;
  const bool multiplies = a.size(a.dim() - 1) > 0;
  if (c && !cuda && multiplies && !std::isfinite(alpha) && out.scalar_type() == ScalarType::Float) {
    const Tensor sum = empty_like_product(a, b);
    aten_product(sum, nullptr, a, b, 1, 0);
    return add_scaled(out, sum, *c, alpha, beta);
  }
  if (!c) {
    const Product product =
        cuda ? cuda_products().product[batched] : (batched ? aoti_torch_cpu_bmm_out : aoti_torch_cpu_mm_out);
    check(product(out.get(), a.get(), b.get()), batched ? "bmm" : "mm");
  } else {
    const SumOfProduct product =
        cuda ? cuda_products().sum[batched] : (batched ? aoti_torch_cpu_baddbmm_out : aoti_torch_cpu_addmm_out);
    check(product(out.get(), c->get(), a.get(), b.get(), beta, alpha), batched ? "baddbmm" : "addmm");
  }
}

void count_change(const Tensor& tensor) {
  // The C interface has no call for it. Exchanging a dimension with itself is a write that has no other effect.
  const auto dimension = torch::stable::detail::from(int64_t{0});
  std::array<StableIValue, 3> stack = {torch::stable::detail::from(tensor), dimension, dimension};
  check(torch_call_dispatcher("aten::transpose_", "", stack.data(), TORCH_ABI_VERSION), "transpose_");
  torch::stable::detail::to<Tensor>(stack[0]);  // the same tensor again, to be released
}

void aten_activation(const Tensor& out, const Tensor& x, Activation activation) {
  if (activation == Activation::kNone) return;
  const bool tanh = activation == Activation::kGeluTanh, gelu = tanh || activation == Activation::kGelu;
  const bool in_place = &out == &x;
  std::string name = gelu ? "aten::gelu" : activation == Activation::kRelu ? "aten::relu" : "aten::silu";
  if (in_place) name += "_";
  std::array<StableIValue, 3> stack = {torch::stable::detail::from(x)};
  if (gelu) stack[1] = torch::stable::detail::from(std::string(tanh ? "tanh" : "none"));
  if (!in_place) stack[gelu ? 2 : 1] = torch::stable::detail::from(out);
  check(torch_call_dispatcher(name.c_str(), in_place ? "" : "out", stack.data(), TORCH_ABI_VERSION), name.c_str());
  torch::stable::detail::to<Tensor>(stack[0]);  // `out` again, to be released
}

ProfiledRange::ProfiledRange(const char* name) {
  if (aoti_record_function_start(name, nullptr, nullptr, 0, &handle_) != AOTI_TORCH_SUCCESS) handle_ = nullptr;
}

ProfiledRange::~ProfiledRange() {
  if (handle_) aoti_record_function_end(handle_);
}

}  // namespace sgemm
