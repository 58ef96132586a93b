// The 16-bit floats that operands may hold in memory; float32 represents each of them exactly.
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

// Returns a view of operand x with element type T.
template <class T>
SGEMM_HOST_DEVICE MatrixView<const T> in_elements(const ConstMatrix& x) {
  return {reinterpret_cast<const T*>(x.data), x.rows, x.cols, x.row, x.col, x.batch};
}

// Calls `run` with a view of x in its element type.
template <class Run>
void with_elements(const ConstMatrix& x, ElementType elements, const Run& run) {
  if (elements == ElementType::kBFloat16)
    run(in_elements<BFloat16>(x));
  else if (elements == ElementType::kFloat16)
    run(in_elements<Float16>(x));
  else
    run(x);
}

SGEMM_HOST_DEVICE inline float from_16_bits(uint16_t bits, bool is_bfloat16) {
  return is_bfloat16 ? static_cast<float>(BFloat16{bits}) : static_cast<float>(Float16{bits});
}

// Reads the element at index `i` of an operand. For cold code, which is not worth an instantiation for each type.
SGEMM_HOST_DEVICE inline float element_at(const float* data, int64_t i, ElementType elements) {
  if (elements == ElementType::kFloat32) return data[i];
  return from_16_bits(reinterpret_cast<const uint16_t*>(data)[i], elements == ElementType::kBFloat16);
}

SGEMM_HOST_DEVICE inline int element_bytes(ElementType elements) { return elements == ElementType::kFloat32 ? 4 : 2; }

// Address of an operand's elements of any type.
struct ElementPointer {
  const float* data;  // for 16-bit elements only an address; don't dereference
  ElementType elements = ElementType::kFloat32;

  SGEMM_HOST_DEVICE ElementPointer operator+(int64_t count) const {
    const char* const bytes = reinterpret_cast<const char*>(data) + count * element_bytes(elements);
    return {reinterpret_cast<const float*>(bytes), elements};
  }
  SGEMM_HOST_DEVICE float operator[](int64_t i) const { return element_at(data, i, elements); }
};

// Matrix of an operand with elements of any type: entry `batch`.
struct ElementMatrix {
  ElementPointer data;
  int64_t row, col;
  SGEMM_HOST_DEVICE ElementMatrix(const ConstMatrix& x, ElementType elements, int64_t batch)
      : data(ElementPointer{x.data, elements} + x.batch.offset(batch)), row(x.row), col(x.col) {}
  SGEMM_HOST_DEVICE ElementPointer at(int64_t i, int64_t j) const { return data + (i * row + j * col); }
};
inline SGEMM_HOST_DEVICE ElementMatrix matrix_of_a(const Problem& p, int64_t batch) {
  return {p.a, p.elements_a, batch};
}
inline SGEMM_HOST_DEVICE ElementMatrix matrix_of_b(const Problem& p, int64_t batch) {
  return {p.b, p.elements_b, batch};
}

#if defined(__CUDACC__)
// Reads fours of neighbouring 16-bit elements. The i-th four is `i * apart` elements after `from`; it is 0 unless
// inside(i).
template <int N, class Inside>
__device__ __forceinline__ void read_fours(float (&x)[N], const ElementPointer& from, int64_t apart,
                                           const Inside& inside) {
  const uint16_t* const data = reinterpret_cast<const uint16_t*>(from.data);
  const bool is_bfloat16 = from.elements == ElementType::kBFloat16;
  uint2 bits[N / 4];
#pragma unroll
  for (int i = 0; i < N / 4; ++i)
    bits[i] = inside(i) ? *reinterpret_cast<const uint2*>(data + i * apart) : make_uint2(0, 0);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint32_t word = i % 4 < 2 ? bits[i / 4].x : bits[i / 4].y;
    x[i] = from_16_bits(static_cast<uint16_t>(i % 2 ? word >> 16 : word), is_bfloat16);
  }
}

// Reads N elements: the i-th from index at(i), or 0 unless inside(i). No branch separates the reads, because a branch
// would wait for the reads in flight.
template <int N, class At, class Inside>
__device__ __forceinline__ void read_elements(float (&x)[N], const ElementPointer& from, const At& at,
                                              const Inside& inside) {
  if (from.elements == ElementType::kFloat32) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = inside(i) ? from.data[at(i)] : 0.0f;
    return;
  }
  const uint16_t* const data = reinterpret_cast<const uint16_t*>(from.data);
  const bool is_bfloat16 = from.elements == ElementType::kBFloat16;
  uint16_t bits[N];
#pragma unroll
  for (int i = 0; i < N; ++i) bits[i] = inside(i) ? data[at(i)] : uint16_t{0};
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = from_16_bits(bits[i], is_bfloat16);
}
#endif

}  // namespace sgemm
