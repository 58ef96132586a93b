#include "conditions.h"

#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "product.h"
#include "texts.h"

namespace sgemm {
namespace {

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;

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
  return sizes_text(IntHeaderOnlyArrayRef(sizes.data() + kMostDims - a.dim(), a.dim()));
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

// Returns the first dimension of a batch in which b differs from a; -1 if there is none.
int64_t other_batch(const Tensor& b, const Tensor& a) {
  for (int64_t i = 0; i + 2 < a.dim(); ++i)
    if (b.size(i) != a.size(i)) return i;
  return -1;
}

// Returns true if x and y have the same elements in the same order.
bool is_same(const Tensor& x, const Tensor& y) {
  bool same = x.dim() == y.dim() && x.const_data_ptr() == y.const_data_ptr();
  for (int64_t i = 0; same && i < x.dim(); ++i) same = x.size(i) == y.size(i) && x.stride(i) == y.stride(i);
  return same;
}

// Returns true if x and y are views of one storage.
bool share_storage(const Tensor& x, const Tensor& y) {
  const auto storage = [](const Tensor& tensor) {
    return static_cast<const char*>(tensor.const_data_ptr()) - tensor.storage_offset() * tensor.element_size();
  };
  return x.numel() && y.numel() && storage(x) == storage(y);
}

}  // namespace

bool Float32::holds(const Tensor& x) { return x.scalar_type() == ScalarType::Float; }
std::string Float32::accepted(const Tensor&) { return "dtype float32"; }

bool Float32Or16::holds(const Tensor& x) {
  const ScalarType type = x.scalar_type();
  return type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half;
}
std::string Float32Or16::accepted(const Tensor&) { return "dtype float32, bfloat16 or float16"; }

bool Strided::holds(const Tensor& x) {
  int32_t layout;
  return aoti_torch_get_layout(x.get(), &layout) == AOTI_TORCH_SUCCESS && layout == aoti_torch_layout_strided();
}

bool OnDevice::holds(const Tensor& x, const Tensor& like) {
  return x.is_cuda() == like.is_cuda() && (!x.is_cuda() || x.get_device_index() == like.get_device_index());
}
std::string OnDevice::accepted(const Tensor&, const Tensor& like) { return "device " + device_text(like); }

bool Dimensions::holds(const Tensor& x, int dims) { return x.dim() == dims; }
std::string Dimensions::accepted(const Tensor&, int dims) {
  constexpr const char* kAxes[] = {"", "(elements)", "(rows, columns)", "(batch, rows, columns)"};
  return std::to_string(dims) + " dimensions " + (dims < 4 ? kAxes[dims] : "(..., rows, columns)");
}

bool BatchOf::holds(const Tensor& b, const Tensor& a) { return other_batch(b, a) < 0; }
std::string BatchOf::accepted(const Tensor& b, const Tensor& a) {
  return "a batch of " + std::to_string(a.size(other_batch(b, a))) + ", that of 'a' with " + describe(a);
}

bool RowsForColumnsOf::holds(const Tensor& b, const Tensor& a) { return b.size(a.dim() - 2) == a.size(a.dim() - 1); }
std::string RowsForColumnsOf::accepted(const Tensor&, const Tensor& a) {
  return std::to_string(a.size(a.dim() - 1)) + " rows, the columns of 'a' with " + describe(a);
}

bool InRange::holds(double factor) { return !std::isfinite(factor) || std::isfinite(static_cast<float>(factor)); }
std::string InRange::accepted(double) { return "numbers in the range of float32"; }

bool ProductShape::holds(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (out.dim() != a.dim()) return false;
  const Sizes sizes = product_sizes(a, b);
  bool same = true;
  for (int64_t i = 0; i < out.dim(); ++i) same &= out.size(i) == sizes[kMostDims - out.dim() + i];
  return same;
}
std::string ProductShape::accepted(const Tensor&, const Tensor& a, const Tensor& b) {
  return "shape " + product_shape(a, b);
}

bool Broadcasts::holds(const Tensor& c, const Tensor& a, const Tensor& b) {
  const Sizes sizes = product_sizes(a, b);
  bool fits = c.dim() <= a.dim();
  for (int64_t i = 0; fits && i < c.dim(); ++i) fits = c.size(i) == 1 || c.size(i) == sizes[kMostDims - c.dim() + i];
  return fits;
}
std::string Broadcasts::accepted(const Tensor&, const Tensor& a, const Tensor& b) {
  return "a shape that broadcasts to " + product_shape(a, b);
}

bool Writable::holds(const Tensor& out) {
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
std::string Writable::accepted(const Tensor&) { return "an output whose elements don't share memory"; }

bool Apart::holds(const Tensor& out, const Tensor& input, const char*) {
  if (out.numel() == 0 || input.numel() == 0) return true;
  const auto [out_first, out_end] = extent(out);
  const auto [in_first, in_end] = extent(input);
  return out_end <= in_first || in_end <= out_first || in_disjoint_columns(out, input);
}
std::string Apart::accepted(const Tensor&, const Tensor& input, const char* name) {
  return std::string("an output that shares no memory with '") + name + "', which has " + describe(input);
}

bool ApartOrSame::holds(const Tensor& out, const Tensor& c, const char* name) {
  return is_same(out, c) || Apart::holds(out, c, name);
}
std::string ApartOrSame::accepted(const Tensor& out, const Tensor& c, const char* name) {
  return Apart::accepted(out, c, name);
}

bool OtherStorage::holds(const Tensor& out, const Tensor& input) { return !share_storage(out, input); }

bool OtherStorageOrSame::holds(const Tensor& out, const Tensor& c) { return !share_storage(out, c) || is_same(out, c); }

bool Features::holds(const Tensor& x) { return x.dim() >= 1; }
std::string Features::accepted(const Tensor&) { return "1 dimension (features) or more"; }

bool ColumnsForFeaturesOf::holds(const Tensor& weight, const Tensor& x) {
  return weight.size(1) == x.size(x.dim() - 1);
}
std::string ColumnsForFeaturesOf::accepted(const Tensor&, const Tensor& x) {
  return std::to_string(x.size(x.dim() - 1)) + " columns, the features of 'x' with " + describe(x);
}

bool BiasOf::holds(const Tensor& bias, const Tensor& weight) { return bias.size(0) == weight.size(0); }
std::string BiasOf::accepted(const Tensor&, const Tensor& weight) {
  return "shape [" + std::to_string(weight.size(0)) + "], the rows of 'weight' with " + describe(weight);
}

bool PlanesOf::holds(const Tensor& planes, const Tensor& b) {
  return planes.numel() == static_cast<int64_t>(backend(DeviceType::kCuda).plane_bytes(b.size(0), b.size(1)) / 4);
}
std::string PlanesOf::accepted(const Tensor&, const Tensor& b) {
  return "what pack returned for 'b', which has " + describe(b);
}

}  // namespace sgemm
