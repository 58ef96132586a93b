#include "checks.h"

#include <torch/headeronly/core/ScalarType.h>

#include <sstream>

namespace sgemm {
namespace {

using torch::headeronly::ScalarType;

// Requires a dtype, the device of `like` and `dims` dimensions. An error lists all three.
template <class Dtype>
void check_argument(const char* op, const char* name, const Tensor& x, const Tensor& like, int dims) {
  check_defined(op, name, x);
  if (Dtype::holds(x) && Dimensions::holds(x, dims) && OnDevice::holds(x, like)) return;
  reject(op, name, x, Dtype::accepted(x) + ", " + OnDevice::accepted(x, like) + ", " + Dimensions::accepted(x, dims));
}

}  // namespace

void check_defined(const char* op, const char* name, const Tensor& tensor) {
  if (!tensor.defined()) fail(op, std::string("argument '") + name + "' is None; accepted: a tensor");
}

void check_tensor(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims) {
  check_argument<Float32>(op, name, tensor, like, dims);
}

void check_operand(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims) {
  check_argument<Float32Or16>(op, name, tensor, like, dims);
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

void check_inputs(const char* op, const Tensor& a, const Tensor& b, int dims) {
  check_operand(op, "a", a, a, dims);
  check_operand(op, "b", b, a, dims);
  check<BatchOf>(op, "b", b, a);
  check<RowsForColumnsOf>(op, "b", b, a);
}

void check_addend(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, const Tensor* out) {
  check_defined(op, "c", c);
  check_tensor(op, "c", c, a, static_cast<int>(c.dim()));
  check<Broadcasts>(op, "c", c, a, b);
  if (out) check<ApartOrSame>(op, "out", *out, c, "c");
}

void check_output(const char* op, const char* name, const Tensor& out, const Tensor& a, const Tensor& b) {
  check_tensor(op, name, out, a, static_cast<int>(a.dim()));
  check<ProductShape>(op, name, out, a, b);
  check<Writable>(op, name, out);
  check<Apart>(op, name, out, a, "a");
  check<Apart>(op, name, out, b, "b");
}

float check_factor(const char* op, const char* name, double factor) {
  if (!InRange::holds(factor)) {
    std::ostringstream number;
    number << factor;
    fail(op, std::string("argument '") + name + "' is " + number.str() + "; accepted: " + InRange::accepted(factor));
  }
  return static_cast<float>(factor);
}

void check_planes(const char* op, const Tensor& planes, const Tensor& b) {
  check_tensor(op, "planes", planes, b, 1);
  check<PlanesOf>(op, "planes", planes, b);
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
