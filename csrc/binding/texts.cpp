#include "texts.h"

#include <torch/headeronly/core/ScalarType.h>

#include <stdexcept>

#include "../table/namespace.h"

namespace sgemm {
namespace {

using torch::headeronly::ScalarType;

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

}  // namespace

std::string sizes_text(torch::headeronly::IntHeaderOnlyArrayRef values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

std::string device_text(const Tensor& tensor) {
  return tensor.is_cuda()  ? "cuda:" + std::to_string(tensor.get_device_index())
         : tensor.is_cpu() ? "cpu"
                           : "another device";
}

std::string describe(const Tensor& tensor) {
  return "shape " + sizes_text(tensor.sizes()) + ", strides " + sizes_text(tensor.strides()) + ", dtype " +
         dtype_name(tensor.scalar_type()) + ", device " + device_text(tensor);
}

void fail(const char* op, const std::string& text) {
  throw std::runtime_error(std::string(kOperators) + op + ": " + text);
}

void reject(const char* op, const char* name, const Tensor& tensor, const std::string& accepted) {
  fail(op, std::string("argument '") + name + "' has " + describe(tensor) + "; accepted: " + accepted);
}

}  // namespace sgemm
