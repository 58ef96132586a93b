// GEMMul8's product of row-major matrices: int8, 8 moduli, fast mode.
//
// Its headers are included as in its gemmul8.cu, without complex numbers, which take most of the time to compile.
// gemm() synchronises the stream around each of its parts, to time them. A CUDA graph can't capture that, so these
// calls are left out here. Its constants are copied to the GPU by the first call, and not by every one.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuComplex.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

static bool copied = false;
#define cudaStreamSynchronize(stream) static_cast<void>(stream)
#define cudaMemcpyToSymbolAsync(...) (copied ? cudaSuccess : cudaMemcpyToSymbolAsync(__VA_ARGS__))
// clang-format off
#include "gemmul8.hpp"
#include "self_hipify.hpp"
#include "template_type.hpp"
#include "common.hpp"
#include "template_math.hpp"
#include "table.hpp"
#include "find_max.hpp"
#include "mod.hpp"
#include "matmult.hpp"
#include "scaling.hpp"
#include "scaling_fast_real.hpp"
#include "scaling_accu_real.hpp"
#include "conv_hi2mid_real.hpp"
#include "inverse_scaling_real.hpp"
#include "gemmul8_real.hpp"
// clang-format on
#undef cudaStreamSynchronize
#undef cudaMemcpyToSymbolAsync

extern "C" int peer_variants() { return 1; }

extern "C" int peer_mm(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, int,
                       void* stream) try {
  constexpr auto int8 = gemmul8::Backend::INT8;
  constexpr unsigned moduli = 8;
  static cublasHandle_t handle = nullptr;  // made, and the workspace grown, by calls that aren't captured
  static void* work = nullptr;
  static size_t size = 0;
  if (handle == nullptr && cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
  const size_t needed = real::workSize<int8>(n, m, k, moduli, false, false, nullptr, nullptr);
  if (needed > size) {
    cudaFree(work);
    size = 0;
    if (cudaMalloc(&work, needed) != cudaSuccess) return 2;
    size = needed;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  if (cublasSetStream(handle, on) != CUBLAS_STATUS_SUCCESS) return 3;
  const float one = 1, zero = 0;  // C is row-major: its transpose is the product of the transposes
  real::gemm<float, int8>(Handle_t(CublasTag{}, handle), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b, n, a, k, &zero, c,
                          n, moduli, /*fastmode=*/true, work, nullptr, nullptr, false, false, false, false, on);
  if (cudaGetLastError() != cudaSuccess) return 4;
  copied = true;
  return 0;
} catch (...) {
  return 5;
}
