// Checks of an operator's arguments, before it runs or writes anything. Each failure is a std::runtime_error that names
// the operator, the argument, its shape, strides, dtype and device, and the accepted values.
#pragma once
#include <string>

#include "torch_calls.h"

namespace sgemm {

// Requires a float32 tensor of `dims` dimensions on the device of `like`.
void check_tensor(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims);

// The same for an operand, which may also be bfloat16 or float16.
void check_operand(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims);

// Returns the type of an operand's elements.
ElementType elements(const Tensor& operand);

// Requires that b's batch and inner size fit a's.
void check_product(const char* op, const Tensor& a, const Tensor& b);

// Requires valid operands of `dims` dimensions.
void check_inputs(const char* op, const Tensor& a, const Tensor& b, int dims);

// Requires a tensor that is not None.
void check_defined(const char* op, const char* name, const Tensor& tensor);

// Requires a tensor of the product's shape, (m, n) or (batch, m, n).
void check_shape(const char* op, const char* name, const Tensor& tensor, const Tensor& a, const Tensor& b);

// Requires that c broadcasts to the product's shape.
void check_broadcast(const char* op, const char* name, const Tensor& tensor, const Tensor& a, const Tensor& b);

// Requires that no two elements of `out` share memory.
void check_writable(const char* op, const char* name, const Tensor& out);

// Requires that `out` shares no memory with `input`.
void check_no_overlap(const char* op, const char* name, const Tensor& out, const char* input_name, const Tensor& input);

// Requires a c that can be read and broadcasts. `out`, if there is one, may be c itself, but must not overlap it
// otherwise.
void check_addend(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, const Tensor* out);

// Requires an `out` that can be written and shares no memory with a and b.
void check_output(const char* op, const char* name, const Tensor& out, const Tensor& a, const Tensor& b);

// Reports the change of `out` to autograd. Call it after all checks.
void begin_writing(const char* op, const char* name, const Tensor& out);

// Returns a factor as float32. Requires that it is within the range of float32, or Inf or NaN.
float check_factor(const char* op, const char* name, double factor);

// The same checks as predicates.
bool fits_float32(double factor);
bool same_device(const Tensor& x, const Tensor& y);
bool has_product_shape(const Tensor& tensor, const Tensor& a, const Tensor& b);
bool broadcasts_to_product(const Tensor& tensor, const Tensor& a, const Tensor& b);
bool is_writable(const Tensor& out);

bool is_strided(const Tensor& tensor);

// Returns true if x and y are views of one storage.
bool share_storage(const Tensor& x, const Tensor& y);

// Returns true if x and y have the same elements in the same order.
bool is_same(const Tensor& x, const Tensor& y);

// "shape [2, 3], strides [3, 1], dtype float32, device cuda:0"
std::string describe(const Tensor& tensor);

[[noreturn]] void fail(const char* op, const std::string& text);

}  // namespace sgemm
