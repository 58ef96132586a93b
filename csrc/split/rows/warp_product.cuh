// A warp's 16-bit products, m16n8k16. They are half as fast as a warpgroup's, but operands may come from registers, and
// functions with these products may be called from kernels that use wgmma.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sgemm::split {

// Computes d += a b: 16 x 8, over 16 of k.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
#define SGEMM_MMA(TYPE)                                      \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "            \
      "{%8, %9}, {%0, %1, %2, %3};"                          \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, __half>)
    SGEMM_MMA("f16");
  else
    SGEMM_MMA("bf16");
#undef SGEMM_MMA
}

}  // namespace sgemm::split
