// The 16-bit floats that operands may be in memory; each is a float32 too.
#pragma once
#include <cstdint>
#include <cstring>

#include "problem.h"

namespace sgemm {

SGEMM_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

struct BFloat16 {
  uint16_t bits;
  SGEMM_HOST_DEVICE operator float() const { return float_of_bits(uint32_t{bits} << 16); }
};

struct Float16 {
  uint16_t bits;
  SGEMM_HOST_DEVICE operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits & 0x7c00u, all = (bits & 0x7fffu) << 13;
    const float subnormal = static_cast<float>(bits & 0x3ffu) * 0x1p-24f;
    if (exponent == 0) return sign ? -subnormal : subnormal;
    return float_of_bits(sign | (exponent == 0x7c00u ? all | 0x7f800000u : all + (112u << 23)));
  }
};

// Calls `run` with the operand as a view of what its elements are.
template <class Run>
void with_elements(const ConstMatrix& x, ElementType elements, const Run& run) {
  const auto as = [&](auto element) {
    run(MatrixView<const decltype(element)>{reinterpret_cast<const decltype(element)*>(x.data), x.rows, x.cols, x.row,
                                            x.col, x.batch});
  };
  elements == ElementType::kBFloat16 ? as(BFloat16()) : elements == ElementType::kFloat16 ? as(Float16()) : run(x);
}

}  // namespace sgemm
