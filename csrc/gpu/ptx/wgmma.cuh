// A warpgroup's matrix products, 64 x N x 16 for several N (64 x 128 x 8 for TF32). Both operands lie in shared memory,
// or A in registers; accumulators lie in registers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "mbarrier.cuh"

namespace sgemm::hopper {

// ---- registers: one warpgroup releases some for another

template <int COUNT>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- products

// Describes an operand's tile in shared memory with the swizzle of 128 or 64 bytes. Along k ("K-major"): rows of
// SWIZZLE bytes, and each group of eight rows is `stride` bytes after the previous one. Along m or n ("MN-major"): 64
// elements in 128 bytes for each k. Groups of eight k are `stride` bytes apart, groups of 64 elements `leading` bytes.
template <int SWIZZLE = 128>
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  static_assert(SWIZZLE == 128 || SWIZZLE == 64);
  return (uint64_t{SWIZZLE == 128 ? 1 : 2} << 62) | ((address & 0x3FFFF) >> 4) | (uint64_t{leading >> 4} << 16) |
         (uint64_t{stride >> 4} << 32);
}

// Makes earlier writes to registers and shared memory visible to the products that follow.
__device__ __forceinline__ void fence_products() {
  dawdle();
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING committed groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from using sums before a wait_products() that completes them.
template <int N>
__device__ __forceinline__ void fence_registers(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N>
__device__ __forceinline__ void fence_registers(uint32_t (&a)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

#define SGEMM_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SGEMM_SUMS_16(i) SGEMM_SUMS_4(i), SGEMM_SUMS_4(i + 4), SGEMM_SUMS_4(i + 8), SGEMM_SUMS_4(i + 12)
#define SGEMM_LIST_4 "%0, %1, %2, %3"
#define SGEMM_LIST_8 SGEMM_LIST_4 ", %4, %5, %6, %7"
#define SGEMM_LIST_16 SGEMM_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SGEMM_LIST_32 SGEMM_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SGEMM_LIST_48 SGEMM_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SGEMM_LIST_64 SGEMM_LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// After the list of sums come the operand numbers of a, b, add and the two layouts.
#define SGEMM_WGMMA(TYPE, COLUMNS, LIST, A, B, ADD, A_LAYOUT, B_LAYOUT, ...)                        \
  asm volatile(                                                                                     \
      "{\n"                                                                                         \
      ".reg .pred add;\n"                                                                           \
      "setp.ne.b32 add, " ADD                                                                       \
      ", 0;\n"                                                                                      \
      "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE " {" LIST "}, " A ", " B \
      ", add, 1, 1, " A_LAYOUT ", " B_LAYOUT                                                        \
      ";\n"                                                                                         \
      "}\n"                                                                                         \
      : __VA_ARGS__                                                                                 \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(A_ALONG_M)),               \
        "n"(static_cast<int>(B_ALONG_N)))
#define SGEMM_WGMMA_128(TYPE)                                                                                     \
  SGEMM_WGMMA(TYPE, "128", SGEMM_LIST_64, "%64", "%65", "%66", "%67", "%68", SGEMM_SUMS_16(0), SGEMM_SUMS_16(16), \
              SGEMM_SUMS_16(32), SGEMM_SUMS_16(48))
#define SGEMM_WGMMA_64(TYPE) \
  SGEMM_WGMMA(TYPE, "64", SGEMM_LIST_32, "%32", "%33", "%34", "%35", "%36", SGEMM_SUMS_16(0), SGEMM_SUMS_16(16))

// Computes d = a b, or d += a b if `add`; 2 N columns. In thread t of the warpgroup, d[4 j + i] is an element of row 16
// (t / 32) + t % 32 / 4 + 8 (i / 2). Its column is 8 j + 2 (t % 4) + i % 2.
template <class T, bool A_ALONG_M, bool B_ALONG_N, int N>
__device__ __forceinline__ void multiply(float (&d)[N], uint64_t a, uint64_t b, bool add) {
  static_assert(N == 64 || N == 32 || (std::is_same_v<T, __half> && (N == 16 || N == 8 || N == 4)));
  constexpr bool kHalf = std::is_same_v<T, __half>;
  if constexpr (N == 64 && kHalf)
    SGEMM_WGMMA_128("f16");
  else if constexpr (N == 64)
    SGEMM_WGMMA_128("bf16");
  else if constexpr (N == 4 && kHalf)
    SGEMM_WGMMA("f16", "8", SGEMM_LIST_4, "%4", "%5", "%6", "%7", "%8", SGEMM_SUMS_4(0));
  else if constexpr (N == 8 && kHalf)
    SGEMM_WGMMA("f16", "16", SGEMM_LIST_8, "%8", "%9", "%10", "%11", "%12", SGEMM_SUMS_4(0), SGEMM_SUMS_4(4));
  else if constexpr (N == 16 && kHalf)
    SGEMM_WGMMA("f16", "32", SGEMM_LIST_16, "%16", "%17", "%18", "%19", "%20", SGEMM_SUMS_16(0));
  else if constexpr (kHalf)
    SGEMM_WGMMA_64("f16");
  else
    SGEMM_WGMMA_64("bf16");
}

// A product of float16 with A in registers; the list of sums, then the operand numbers of a, b, add and B's layout.
#define SGEMM_WGMMA_REGISTERS(COLUMNS, LIST, A, B, ADD, B_LAYOUT, ...)                                               \
  asm volatile(                                                                                                      \
      "{\n"                                                                                                          \
      ".reg .pred add;\n"                                                                                            \
      "setp.ne.b32 add, " ADD                                                                                        \
      ", 0;\n"                                                                                                       \
      "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.f16.f16 {" LIST "}, {" A "}, " B ", add, 1, 1, " B_LAYOUT \
      ";\n"                                                                                                          \
      "}\n"                                                                                                          \
      : __VA_ARGS__                                                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),                              \
        "n"(static_cast<int>(B_ALONG_N)))

// The same for float16 with A in registers, 64 x 2 N x 16. Thread t holds pairs of neighbours along k. The pair in a[i]
// is of row 16 (t / 32) + t % 32 / 4 + 8 (i % 2). Its first k is 2 (t % 4) + 8 (i / 2). The registers may change once
// the product has completed.
template <bool B_ALONG_N, int N>
__device__ __forceinline__ void multiply_registers(float (&d)[N], const uint32_t (&a)[4], uint64_t b, bool add) {
  static_assert(N == 16 || N == 32 || N == 48 || N == 64);
  if constexpr (N == 16)
    SGEMM_WGMMA_REGISTERS("32", SGEMM_LIST_16, "%16, %17, %18, %19", "%20", "%21", "%22", SGEMM_SUMS_16(0));
  else if constexpr (N == 32)
    SGEMM_WGMMA_REGISTERS("64", SGEMM_LIST_32, "%32, %33, %34, %35", "%36", "%37", "%38", SGEMM_SUMS_16(0),
                          SGEMM_SUMS_16(16));
  else if constexpr (N == 48)
    SGEMM_WGMMA_REGISTERS("96", SGEMM_LIST_48, "%48, %49, %50, %51", "%52", "%53", "%54", SGEMM_SUMS_16(0),
                          SGEMM_SUMS_16(16), SGEMM_SUMS_16(32));
  else
    SGEMM_WGMMA_REGISTERS("128", SGEMM_LIST_64, "%64, %65, %66, %67", "%68", "%69", "%70", SGEMM_SUMS_16(0),
                          SGEMM_SUMS_16(16), SGEMM_SUMS_16(32), SGEMM_SUMS_16(48));
}

// Computes d += a b, 64 x 128 x 8, both operands along k. The tensor cores read float32 operands as TF32: they ignore
// the lower 13 bits.
__device__ __forceinline__ void multiply_tf32(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" SGEMM_LIST_64 "}, %64, %65, 1, 1, 1;\n"
               : SGEMM_SUMS_16(0), SGEMM_SUMS_16(16), SGEMM_SUMS_16(32), SGEMM_SUMS_16(48)
               : "l"(a), "l"(b));
}
#undef SGEMM_WGMMA_64
#undef SGEMM_WGMMA_128
#undef SGEMM_WGMMA
#undef SGEMM_WGMMA_REGISTERS
#undef SGEMM_LIST_64
#undef SGEMM_LIST_48
#undef SGEMM_LIST_32
#undef SGEMM_LIST_16
#undef SGEMM_LIST_8
#undef SGEMM_LIST_4
#undef SGEMM_SUMS_16
#undef SGEMM_SUMS_4

}  // namespace sgemm::hopper
