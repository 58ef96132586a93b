// Hopper's asynchronous instructions under the names that the PTX ISA gives them: mbarriers, bulk copies, warpgroup
// matrix products, clusters, programmatic dependent launch. Only for sm_90a.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "dependent_launch.cuh"

namespace sgemm::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The same number, of which the compiler knows nothing: what depends on it is computed here and not ahead of a loop,
// where it would take registers.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// blockIdx.x, read anew: nothing keeps a register for it, or for what follows from it.
__device__ __forceinline__ uint32_t block_index() {
  uint32_t x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

// Where threads wait for each other, those of a test build (SGEMM_DELAYS) dawdle now and then, for up to 4
// microseconds: an order that nothing enforces doesn't hold there. tools/delays.py compares the results.
__device__ __forceinline__ void dawdle() {
#if defined(SGEMM_DELAYS)
  uint32_t x;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(x));
  x = (x + threadIdx.x / 32 * 0x9e3779b9u) * 0x85ebca6bu;
  x = (x ^ x >> 15) * 0xc2b2ae35u;
  if (x >> 29 == 0) __nanosleep(x & 0xfff);
#endif
}

// ---- programmatic dependent launch

using sgemm::launch_dependents;
__device__ __forceinline__ void wait_for_predecessor() {
  dawdle();
  sgemm::wait_for_predecessor();
}

// ---- global memory

// 8 or 16 bytes at once: the compiler takes them apart where it knows of the elements.
__device__ __forceinline__ void store(float* to, float2 x) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ void store(float* to, float4 x) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// ---- mbarriers in shared memory

__device__ __forceinline__ void init_barrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to bulk copies and to the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  dawdle();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and lets the phase also wait for `bytes` of bulk copies.
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  dawdle();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Until the barrier's phase of this parity has completed.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  dawdle();
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- bulk copies: `bytes`, target and source are multiples of 16

__device__ __forceinline__ void copy_bulk(void* target, const void* source, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(target)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Brings a tensor map to where copies look for it.
__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box at (x, y, z, w) of a tensor map.
__device__ __forceinline__ void copy_tensor(void* target, const void* map, int x, int y, int z, int w,
                                            uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(target)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}

// Makes what this thread wrote to shared memory the ordinary way visible to wgmma and bulk copies.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- barriers of some of a block's warps, by number

__device__ __forceinline__ void sync_some(int barrier, int threads) {
  dawdle();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// For one thread, when its block has written: whether the block is the last of `count`, so that it sees what all wrote.
__device__ __forceinline__ bool arrives_last(uint32_t* arrived, uint32_t count) {
  dawdle();
  __threadfence();
  const bool last = atomicAdd(arrived, 1u) + 1 == count;
  __threadfence();
  return last;
}

// ---- clusters

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// The cluster's barrier in two halves, for all threads; what each wrote before arriving is visible behind the wait.
__device__ __forceinline__ void arrive_cluster() {
  dawdle();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Without a fence, which waits for all that is under way: nothing but initialised barriers is handed on.
__device__ __forceinline__ void arrive_cluster_relaxed() {
  dawdle();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address in shared memory of block `rank` that corresponds to `address` in this block's.
__device__ __forceinline__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// As arrive() at the barrier of another block.
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
  dawdle();
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// A word of another block, or of this one.
__device__ __forceinline__ float load_in_cluster(uint32_t from) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(from));
  return value;
}

// A word to another block, or to this one, whose barrier counts the bytes.
__device__ __forceinline__ void store_in_cluster(uint32_t target, uint32_t value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(target),
               "r"(value), "r"(barrier)
               : "memory");
}

// Four floats or integers, likewise.
__device__ __forceinline__ void store_in_cluster(uint32_t target, const float* four, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
      "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_in_cluster(uint32_t target, const uint32_t* four, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
      "r"(four[0]), "r"(four[1]), "r"(four[2]), "r"(four[3]), "r"(barrier)
      : "memory");
}

// A bulk copy to another block, whose barrier counts the bytes.
__device__ __forceinline__ void copy_in_cluster(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier) {
  dawdle();
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
      "r"(shared_address(source)), "r"(bytes), "r"(barrier)
      : "memory");
}

// ---- registers: a warpgroup hands some to another

template <int COUNT>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- wgmma: 64 x 128 x 16 and 64 x 64 x 16 products of a warpgroup, operands in shared memory, sums in registers

// An operand's tile in shared memory with the 128-byte swizzle. Along k ("K-major"): rows of 128 bytes, eight of them
// `stride` bytes from the next eight. Along m or n ("MN-major"): for each of k 64 elements in 128 bytes, eight of k
// `stride` bytes from the next eight, 64 elements `leading` bytes from the next 64.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | ((address & 0x3FFFF) >> 4) | (uint64_t{leading >> 4} << 16) | (uint64_t{stride >> 4} << 32);
}

// Registers and shared memory written before are visible to the products behind.
__device__ __forceinline__ void fence_products() {
  dawdle();
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING committed groups are under way.
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

#define SGEMM_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SGEMM_SUMS_16(i) SGEMM_SUMS_4(i), SGEMM_SUMS_4(i + 4), SGEMM_SUMS_4(i + 8), SGEMM_SUMS_4(i + 12)
#define SGEMM_LIST_32                                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SGEMM_LIST_64                                                                                      \
  SGEMM_LIST_32                                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// Behind the list of sums come a, b, add and the two layouts: their numbers.
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

// d = a b, or d += a b if `add`; 2 N columns. Thread t of the warpgroup holds in d[4 j + i] the element of row
// 16 (t / 32) + t % 32 / 4 + 8 (i / 2) and column 8 j + 2 (t % 4) + i % 2.
template <class T, bool A_ALONG_M, bool B_ALONG_N, int N>
__device__ __forceinline__ void multiply(float (&d)[N], uint64_t a, uint64_t b, bool add) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  if constexpr (N == 64 && kHalf)
    SGEMM_WGMMA_128("f16");
  else if constexpr (N == 64)
    SGEMM_WGMMA_128("bf16");
  else if constexpr (kHalf)
    SGEMM_WGMMA_64("f16");
  else
    SGEMM_WGMMA_64("bf16");
}
#undef SGEMM_WGMMA_64
#undef SGEMM_WGMMA_128
#undef SGEMM_WGMMA
#undef SGEMM_LIST_64
#undef SGEMM_LIST_32
#undef SGEMM_SUMS_16
#undef SGEMM_SUMS_4

}  // namespace sgemm::hopper
