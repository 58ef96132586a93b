// CUTLASS's 3xTF32 product of row-major matrices, as in its example 27, with the tiles of its library's generator.
//
// A variant is a tile and a number of slices of k. Its caller times the variants and keeps the fastest.

#include <cstdint>

#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/device/gemm.h"

namespace {

using Row = cutlass::layout::RowMajor;

template <int m, int n, int k, int warp_m, int warp_n, int stages>
struct Tile {
  using Gemm =
      cutlass::gemm::device::Gemm<float, Row, float, Row, float, Row, float, cutlass::arch::OpClassTensorOp,
                                  cutlass::arch::Sm80, cutlass::gemm::GemmShape<m, n, k>,
                                  cutlass::gemm::GemmShape<warp_m, warp_n, k>, cutlass::gemm::GemmShape<16, 8, 8>,
                                  cutlass::epilogue::thread::LinearCombination<float, 4, float, float>,
                                  cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, stages, 4, 4,
                                  /*SplitKSerial=*/true, cutlass::arch::OpMultiplyAddFastF32>;

  static int run(const float* a, const float* b, float* c, int rows, int cols, int depth, int slices, void* work,
                 cudaStream_t stream) {
    typename Gemm::Arguments arguments({rows, cols, depth}, {a, depth}, {b, cols}, {c, cols}, {c, cols}, {1.0f, 0.0f},
                                       slices);
    Gemm gemm;
    if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return 1;
    if (Gemm::get_workspace_size(arguments) > (size_t{1} << 20)) return 2;
    if (gemm.initialize(arguments, work, stream) != cutlass::Status::kSuccess) return 3;
    return gemm.run(stream) == cutlass::Status::kSuccess ? 0 : 4;
  }
};

using Run = int (*)(const float*, const float*, float*, int, int, int, int, void*, cudaStream_t);
constexpr Run tiles[] = {
    Tile<128, 128, 16, 32, 64, 4>::run, Tile<256, 64, 16, 64, 32, 3>::run, Tile<64, 256, 16, 32, 64, 3>::run,
    Tile<128, 64, 16, 64, 32, 4>::run,  Tile<64, 64, 16, 32, 32, 3>::run,  Tile<128, 128, 32, 32, 64, 3>::run,
};
constexpr int slices[] = {1, 4, 16};
constexpr int count = sizeof(tiles) / sizeof(*tiles);

}  // namespace

extern "C" int peer_variants() { return count * static_cast<int>(sizeof(slices) / sizeof(*slices)); }

extern "C" int peer_mm(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, int variant,
                       void* stream) {
  static void* work = nullptr;  // the first call isn't captured
  if (work == nullptr && cudaMalloc(&work, size_t{1} << 20) != cudaSuccess) return 5;
  return tiles[variant % count](a, b, c, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
                                slices[variant / count], work, static_cast<cudaStream_t>(stream));
}
