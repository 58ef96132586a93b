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
#if defined(__CUDA_ARCH__)
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
#else
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits & 0x7c00u, all = (bits & 0x7fffu) << 13;
    const float subnormal = static_cast<float>(bits & 0x3ffu) * 0x1p-24f;
    if (exponent == 0) return sign ? -subnormal : subnormal;
    return float_of_bits(sign | (exponent == 0x7c00u ? all | 0x7f800000u : all + (112u << 23)));
#endif
  }
};

// An operand as a view of what its elements are.
template <class T>
SGEMM_HOST_DEVICE MatrixView<const T> in_elements(const ConstMatrix& x) {
  return {reinterpret_cast<const T*>(x.data), x.rows, x.cols, x.row, x.col, x.batch};
}

// Calls `run` with that view.
template <class Run>
void with_elements(const ConstMatrix& x, ElementType elements, const Run& run) {
  if (elements == ElementType::kBFloat16)
    run(in_elements<BFloat16>(x));
  else if (elements == ElementType::kFloat16)
    run(in_elements<Float16>(x));
  else
    run(x);
}

// The element at index `i` of an operand's memory, where code is too cold for each type to have its own.
SGEMM_HOST_DEVICE inline float element_at(const float* data, int64_t i, ElementType elements) {
  if (elements == ElementType::kBFloat16) return reinterpret_cast<const BFloat16*>(data)[i];
  if (elements == ElementType::kFloat16) return reinterpret_cast<const Float16*>(data)[i];
  return data[i];
}

inline int element_bytes(ElementType elements) { return elements == ElementType::kFloat32 ? 4 : 2; }

}  // namespace sgemm
