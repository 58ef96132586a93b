// Checks of an operator's arguments, before anything runs or is written. Each failure is a std::runtime_error that
// names the operator, the argument, its shape, strides, dtype and device, and what is accepted.
#pragma once
#include <string>

#include "torch_calls.h"

namespace sgemm {

// float32, on the device of `like`, of `dims` dimensions.
void check_tensor(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims);

// The same of an operand, which may be bfloat16 or float16 as well.
void check_operand(const char* op, const char* name, const Tensor& tensor, const Tensor& like, int dims);

// What an operand's elements are.
ElementType elements(const Tensor& operand);

// b's batch and inner size fit a's.
void check_product(const char* op, const Tensor& a, const Tensor& b);

// Operands of `dims` dimensions.
void check_inputs(const char* op, const Tensor& a, const Tensor& b, int dims);

// A tensor, and not None.
void check_defined(const char* op, const char* name, const Tensor& tensor);

// A tensor of the product's shape (m, n) or (batch, m, n).
void check_shape(const char* op, const char* name, const Tensor& tensor, const Tensor& a, const Tensor& b);

// c broadcasts to the product's shape.
void check_broadcast(const char* op, const char* name, const Tensor& tensor, const Tensor& a, const Tensor& b);

// No two elements of `out` share memory.
void check_writable(const char* op, const char* name, const Tensor& out);

// `out` shares no memory with `input`.
void check_no_overlap(const char* op, const char* name, const Tensor& out, const char* input_name, const Tensor& input);

// c is read and broadcasts; `out`, if there is one, may be c itself, but not share memory with it otherwise.
void check_addend(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, const Tensor* out);

// `out` is written, and shares no memory with a and b.
void check_output(const char* op, const char* name, const Tensor& out, const Tensor& a, const Tensor& b);

// After all checks: autograd sees the change of `out`.
void begin_writing(const char* op, const char* name, const Tensor& out);

// A factor as float32, in whose range it has to be; Inf and NaN are.
float check_factor(const char* op, const char* name, double factor);

// The same as questions.
bool fits_float32(double factor);
bool same_device(const Tensor& x, const Tensor& y);
bool has_product_shape(const Tensor& tensor, const Tensor& a, const Tensor& b);
bool broadcasts_to_product(const Tensor& tensor, const Tensor& a, const Tensor& b);
bool is_writable(const Tensor& out);

bool is_strided(const Tensor& tensor);

// Views of one storage.
bool share_storage(const Tensor& x, const Tensor& y);

// The same elements in the same order.
bool is_same(const Tensor& x, const Tensor& y);

// "shape [2, 3], strides [3, 1], dtype float32, device cuda:0"
std::string describe(const Tensor& tensor);

[[noreturn]] void fail(const char* op, const std::string& text);

}  // namespace sgemm
