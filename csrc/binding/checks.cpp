#include "checks.h"

#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "../table/namespace.h"

namespace sgemm {
namespace {

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;

std::string list(IntHeaderOnlyArrayRef values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

// Returns Python's name of a dtype.
std::string dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    default:
      return torch::headeronly::toString(type);
  }
}

std::string device_name(const Tensor& tensor) {
  return tensor.is_cuda()  ? "cuda:" + std::to_string(tensor.get_device_index())
         : tensor.is_cpu() ? "cpu"
                           : "another device";
}

[[noreturn]] void reject(const char* op, const char* name, const Tensor& tensor, const std::string& accepted) {
  fail(op, std::string("argument '") + name + "' has " + describe(tensor) + "; accepted: " + accepted);
}

// The product's sizes, in at most four dimensions; operators with fewer dimensions use the last ones.
constexpr int64_t kMostDims = 4;
using Sizes = std::array<int64_t, kMostDims>;

Sizes product_sizes(const Tensor& a, const Tensor& b) {
  Sizes sizes = {1, 1, 1, b.size(b.dim() - 1)};
  for (int64_t i = 0; i + 1 < a.dim(); ++i) sizes[kMostDims - a.dim() + i] = a.size(i);
  return sizes;
}

std::string product_shape(const Tensor& a, const Tensor& b) {
  const Sizes sizes = product_sizes(a, b);
  return list(IntHeaderOnlyArrayRef(sizes.data() + kMostDims - a.dim(), a.dim()));
}

// A dimension of a tensor in memory.
struct Axis {
  int64_t stride, size;
};

// Returns the dimensions of size greater than one, shortest stride first.
std::array<Axis, kMostDims> axes(const Tensor& tensor, int& count) {
  std::array<Axis, kMostDims> out;
  count = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) <= 1) continue;
    int place = count++;
    for (; place > 0 && out[place - 1].stride > tensor.stride(i); --place) out[place] = out[place - 1];
    out[place] = {tensor.stride(i), tensor.size(i)};
  }
  return out;
}

// Returns the addresses of the first element and one past the last.
std::pair<const char*, const char*> extent(const Tensor& tensor) {
  const char* first = static_cast<const char*>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {first, first + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

// Returns true if an argument's dtype, dimensions and device are accepted; `dtypes`: the accepted dtypes.
bool is_accepted(const Tensor& tensor, const Tensor& like, int dims, std::initializer_list<ScalarType> dtypes) {
  return std::find(dtypes.begin(), dtypes.end(), tensor.scalar_type()) != dtypes.end() && tensor.dim() == dims &&
         same_device(tensor, like);
}

std::string accepted(const char* dtypes, const Tensor& like, int dims) {
  constexpr const char* kAxes[] = {"", "(elements)", "(rows, columns)", "(batch, rows, columns)"};
  const std::string shape = dims < 4 ? kAxes[dims] : "(..., rows, columns)";
  return std::string("dtype ") + dtypes + ", device " + device_name(like) + ", " + std::to_string(dims) +
         " dimensions " + shape;
}

// Returns true if x and y are both float32 and lie in disjoint columns of one matrix. The pitch of its rows divides all
// strides longer than one element.
bool in_disjoint_columns(const Tensor& x, const Tensor& y) {
  if (x.scalar_type() != y.scalar_type()) return false;
  int64_t pitch = 0;
  const auto columns = [&pitch](const Tensor& tensor) {
    int count;
    const std::array<Axis, kMostDims> all = axes(tensor, count);
    const bool along = count > 0 && all[0].stride == 1;
    for (int i = along; i < count; ++i) pitch = std::gcd(pitch, all[i].stride);
    return along ? all[0].size : 1;
  };
  const int64_t columns_x = columns(x), columns_y = columns(y);
  if (pitch == 0 || columns_x > pitch) return false;
  const int64_t offset =
      (static_cast<const float*>(y.const_data_ptr()) - static_cast<const float*>(x.const_data_ptr())) % pitch;
  const int64_t column = offset < 0 ? offset + pitch : offset;  // the first column of y, relative to x's
  return column >= columns_x && column + columns_y <= pitch;
}

}  // namespace

void fail(const char* op, const std::string& text) {
  throw std::runtime_error(std::string(kOperators) + op + ": " + text);
}

std::string describe(const Tensor& tensor) {
  return "shape " + list(tensor.sizes()) + ", strides " + list(tensor.strides()) + ", dtype " +
         dtype_name(tensor.scalar_type()) + ", device " + device_name(tensor);
}

void check_defined(const char* op, const char* name, const Tensor& tensor) {
  if (!tensor.defined()) fail(op, std::string("argument '") + name + "' is None; accepted: a tensor");
}

void check_tensor(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims) {
  check_defined(op, name, tensor);
  if (!is_accepted(tensor, like, dims, {ScalarType::Float})) reject(op, name, tensor, accepted("float32", like, dims));
}

void check_operand(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims) {
  check_defined(op, name, tensor);
  if (!is_accepted(tensor, like, dims, {ScalarType::Float, ScalarType::BFloat16, ScalarType::Half}))
    reject(op, name, tensor, accepted("float32, bfloat16 or float16", like, dims));
}

ElementType elements(const Tensor& operand) {
  switch (operand.scalar_type()) {
    case ScalarType::BFloat16:
      return ElementType::kBFloat16;
    case ScalarType::Half:
      return ElementType::kFloat16;
    default:
      return ElementType::kFloat32;
  }
}

void check_product(const char* op, const Tensor& a, const Tensor& b) {
  const int64_t last = a.dim() - 1;
  for (int64_t i = 0; i + 1 < last; ++i)
    if (b.size(i) != a.size(i))
      reject(op, "b", b, "a batch of " + std::to_string(a.size(i)) + ", that of 'a' with " + describe(a));
  if (b.size(last - 1) != a.size(last))
    reject(op, "b", b, std::to_string(a.size(last)) + " rows, the columns of 'a' with " + describe(a));
}

void check_inputs(const char* op, const Tensor& a, const Tensor& b, int dims) {
  check_operand(op, "a", a, a, dims);
  check_operand(op, "b", b, a, dims);
  check_product(op, a, b);
}

void check_shape(const char* op, const char* name, const Tensor& tensor, const Tensor& a, const Tensor& b) {
  if (!has_product_shape(tensor, a, b)) reject(op, name, tensor, "shape " + product_shape(a, b));
}

void check_broadcast(const char* op, const char* name, const Tensor& tensor, const Tensor& a, const Tensor& b) {
  if (!broadcasts_to_product(tensor, a, b))
    reject(op, name, tensor, "a shape that broadcasts to " + product_shape(a, b));
}

void check_writable(const char* op, const char* name, const Tensor& out) {
  if (!is_writable(out)) reject(op, name, out, "an output whose elements don't share memory");
}

void check_no_overlap(const char* op, const char* name, const Tensor& out, const char* input_name,
                      const Tensor& input) {
  if (out.numel() == 0 || input.numel() == 0) return;
  const auto [out_first, out_end] = extent(out);
  const auto [in_first, in_end] = extent(input);
  if (out_end <= in_first || in_end <= out_first || in_disjoint_columns(out, input)) return;
  reject(op, name, out,
         std::string("an output that shares no memory with '") + input_name + "', which has " + describe(input));
}

void check_addend(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, const Tensor* out) {
  check_defined(op, "c", c);
  check_tensor(op, "c", c, a, static_cast<int>(c.dim()));
  check_broadcast(op, "c", c, a, b);
  if (!out) return;
  if (!is_same(c, *out)) check_no_overlap(op, "out", *out, "c", c);
}

bool fits_float32(double factor) { return !std::isfinite(factor) || std::isfinite(static_cast<float>(factor)); }

float check_factor(const char* op, const char* name, double factor) {
  if (!fits_float32(factor)) {
    std::ostringstream number;
    number << factor;
    fail(op, std::string("argument '") + name + "' is " + number.str() + "; accepted: numbers in the range of float32");
  }
  return static_cast<float>(factor);
}

bool same_device(const Tensor& x, const Tensor& y) {
  return x.is_cuda() == y.is_cuda() && (!x.is_cuda() || x.get_device_index() == y.get_device_index());
}

bool has_product_shape(const Tensor& tensor, const Tensor& a, const Tensor& b) {
  const Sizes sizes = product_sizes(a, b);
  bool same = true;
  for (int64_t i = 0; i < tensor.dim(); ++i) same &= tensor.size(i) == sizes[kMostDims - tensor.dim() + i];
  return same;
}

bool broadcasts_to_product(const Tensor& tensor, const Tensor& a, const Tensor& b) {
  const Sizes sizes = product_sizes(a, b);
  bool fits = tensor.dim() <= a.dim();
  for (int64_t i = 0; fits && i < tensor.dim(); ++i)
    fits = tensor.size(i) == 1 || tensor.size(i) == sizes[kMostDims - tensor.dim() + i];
  return fits;
}

bool is_writable(const Tensor& out) {
  if (out.numel() == 0) return true;
  int count;
  const std::array<Axis, kMostDims> dims = axes(out, count);
  int64_t reached = 0;  // offset of the last element along the axes so far
  for (int i = 0; i < count; ++i) {
    if (dims[i].stride <= reached) return false;
    reached += (dims[i].size - 1) * dims[i].stride;
  }
  return true;
}

bool is_strided(const Tensor& tensor) {
  int32_t layout;
  return aoti_torch_get_layout(tensor.get(), &layout) == AOTI_TORCH_SUCCESS && layout == aoti_torch_layout_strided();
}

bool share_storage(const Tensor& x, const Tensor& y) {
  const auto storage = [](const Tensor& tensor) {
    return static_cast<const char*>(tensor.const_data_ptr()) - tensor.storage_offset() * tensor.element_size();
  };
  return x.numel() && y.numel() && storage(x) == storage(y);
}

bool is_same(const Tensor& x, const Tensor& y) {
  bool same = x.dim() == y.dim() && x.const_data_ptr() == y.const_data_ptr();
  for (int64_t i = 0; same && i < x.dim(); ++i) same = x.size(i) == y.size(i) && x.stride(i) == y.stride(i);
  return same;
}

void check_output(const char* op, const char* name, const Tensor& out, const Tensor& a, const Tensor& b) {
  check_tensor(op, name, out, a, static_cast<int>(a.dim()));
  check_shape(op, name, out, a, b);
  check_writable(op, name, out);
  check_no_overlap(op, name, out, "a", a);
  check_no_overlap(op, name, out, "b", b);
}

void begin_writing(const char* op, const char* name, const Tensor& out) {
  try {
    count_change(out);
  } catch (const TorchError&) {
    fail(op, std::string("argument '") + name +
                 "' is an inference tensor, or a view of one that requires grad; accepted: a tensor that PyTorch lets "
                 "an operator write here");
  }
}

}  // namespace sgemm
