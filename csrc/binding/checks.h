// Checks of an operator's arguments, before it runs or writes anything. Each failure is a std::runtime_error that names
// the operator, the argument, its shape, strides, dtype and device, and the accepted values.
#pragma once
#include "conditions.h"
#include "texts.h"

namespace sgemm {

// Requires a condition of conditions.h.
template <class Condition, class... Args>
void check(const char* op, const char* name, const Tensor& tensor, const Args&... args) {
  if (!Condition::holds(tensor, args...)) reject(op, name, tensor, Condition::accepted(tensor, args...));
}

// Requires a tensor that is not None.
void check_defined(const char* op, const char* name, const Tensor& tensor);

// Requires a float32 tensor of `dims` dimensions on the device of `like`.
void check_tensor(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims);

// The same for an operand, which may also be bfloat16 or float16.
void check_operand(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims);

// Returns the type of an operand's elements.
ElementType elements(const Tensor& operand);

// Requires valid operands of `dims` dimensions.
void check_inputs(const char* op, const Tensor& a, const Tensor& b, int dims);

// Requires a c that can be read and broadcasts. `out`, if there is one, may be c itself, but must not overlap it
// otherwise.
void check_addend(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, const Tensor* out);

// Requires an `out` that can be written and shares no memory with a and b.
void check_output(const char* op, const char* name, const Tensor& out, const Tensor& a, const Tensor& b);

// Requires that `planes` is a result of pack() for b.
void check_planes(const char* op, const Tensor& planes, const Tensor& b);

// Reports the change of `out` to autograd. Call it after all checks.
void begin_writing(const char* op, const char* name, const Tensor& out);

// Returns a factor as float32. Requires that it is within the range of float32, or Inf or NaN.
float check_factor(const char* op, const char* name, double factor);

}  // namespace sgemm
