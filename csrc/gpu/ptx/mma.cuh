// A warp's matrix product, m16n8k16 of float16. It is half as fast as a warpgroup's, but both operands come from
// registers.
#pragma once
#include <cstdint>

namespace sgemm::hopper {

// Computes d += a b: 16 x 8, over 16 of k. `upper`, `lower`: a lane's elements of a in its two rows.
__device__ __forceinline__ void multiply_warp(float (&d)[4], const uint32_t (&upper)[2], const uint32_t (&lower)[2],
                                              uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(upper[0]), "r"(lower[0]), "r"(upper[1]), "r"(lower[1]), "r"(b0), "r"(b1));
}

}  // namespace sgemm::hopper
