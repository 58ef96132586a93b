// THE TABLE: every kernel, in the order of the documentation. Tests, benchmarks, documentation and `explain` enumerate
// it; a new kernel needs an include and a row here.
//
// nvcc builds this file for GPUs; table/kernels_emulated.cpp includes it for the CPU.
#include "backend.h"

#include <array>

#include "../epilogue/activate.cuh"
#include "../gpu/pack.cuh"
#include "../ieee/large.h"
#include "../ieee/skinny.h"
#include "../ieee/small.h"
#include "../ieee/tall.h"
#include "../ieee/tiny.cuh"
#include "../ladder/00_triple_loop.cuh"
#include "../ladder/01_naive.cuh"
#include "../ladder/02_coalesced.cuh"
#include "../ladder/03_shared_tile.cuh"
#include "../ladder/04_padded_tile.cuh"
#include "../ladder/05_unrolled_tile.cuh"
#include "../ladder/06_many_outputs.cuh"
#include "../ladder/07_thread_tile_1d.cuh"
#include "../ladder/08_vector_prefetch.cuh"
#include "../ladder/09_thread_tile_2d.cuh"
#include "../ladder/10_thread_tile_2d_vector.cuh"
#include "../ladder/11_double_buffer.cuh"
#include "../ladder/12_register_buffer.cuh"
#include "../ladder/13_async_copy_ring.cuh"
#include "../ladder/14_tma_producer.cuh"
#include "../ladder/15_persistent.cuh"
#include "../ladder/16_wgmma_tf32.cuh"
#include "../ladder/17_wgmma_tf32x3.cuh"
#include "../models/fitted.h"
#include "../split/rows.h"
#include "../split/rows/tall.h"
#include "../split/native16/native16.h"

namespace sgemm::SGEMM_BACKEND {
namespace {

using ieee::Large, ieee::Skinny, ieee::Small, ieee::Tall;
using split::Bf16x6, split::Fp16x3, split::SplitProduct, split::FewRowsProduct, split::TallProduct, split::Native16;

// PyTorch's own kernel, which the binding calls. It belongs to no family, so that no family falls back to it.
constexpr Kernel kAten = {
    "aten", "",     "PyTorch's own kernel (cuBLAS, MKL)", "", 0, 0, 0, 0, 0, 0, Reads::kAnyStrides, 0, kAnyArch,
    0,      nullptr};

using Launch = void (*)(const Problem&, const Plan&, const Context&);

// Launch of a row with a single kernel. Such a row ignores plans, and may have no launch in this backend.
template <class T>
constexpr Launch launch_of() {
  if (T::launch == nullptr) return nullptr;
  return [](const Problem& p, const Plan&, const Context& context) { T::launch(p, context); };
}

template <class T>
constexpr Kernel basic_row(const char* name, const char* family, const char* idea, int min_arch, int max_arch,
                           double share, Launch launch) {
  return {name,  family,      idea,      T::kSource, T::BM,    T::BN, T::BK, T::TM,
          T::TN, T::kThreads, T::kReads, min_arch,   max_arch, share, launch};
}

// A row with a single kernel.
template <class T>
constexpr Kernel row(const char* name, const char* family) {
  return basic_row<T>(name, family, T::kIdea, kMinArch, kAnyArch, rung_share(name), launch_of<T>());
}

// A row with several launches and its own cost model.
template <class T>
constexpr Kernel planned_row(const char* name, const char* family, const char* idea, int min_arch, int max_arch,
                             Launch launch) {
  Kernel kernel = basic_row<T>(name, family, idea, min_arch, max_arch, 0, launch);
  kernel.plan = T::plan;
  kernel.each_plan = T::each_plan;
  kernel.cut = T::cut;
  kernel.activates = T::kActivates;
  kernel.error_bound = T::error_bound;
  return kernel;
}

constexpr Kernel in_auto(Kernel kernel) {
  kernel.in_auto = true;
  return kernel;
}

constexpr Kernel reads_16_bits(Kernel kernel) {
  kernel.reads_16_bits = true;
  return kernel;
}

constexpr Kernel streams_16_bits(Kernel kernel) {
  kernel.streams_16_bits = true;
  return kernel;
}

template <class T>
constexpr Kernel for_few_rows(Kernel kernel) {
  kernel.most_rows = T::kMostRows;
  return kernel;
}

constexpr Kernel batch_invariant(Kernel kernel, Plan (*plan)(const Problem&, const Device&) = nullptr) {
  kernel.batch_invariant = true;
  kernel.invariant_plan = plan;
  return kernel;
}

template <size_t COUNT>
constexpr Kernel in_tiles(const std::array<TileSize, COUNT>& tiles, Kernel kernel) {
  kernel.tiles = tiles.data();
  kernel.tile_count = COUNT;
  return kernel;
}

// A row only for small problems, with its own cost model.
template <class T>
constexpr Kernel limited_row(const char* name, const char* family) {
  Kernel kernel = planned_row<T>(name, family, T::kIdea, kMinArch, kAnyArch, T::launch);
  kernel.max_size = T::kMaxSize;
  kernel.only_one_stride = true;
  return in_auto(kernel);
}

// Launches defined in separate files, which exist only in GPU builds; those of the second macro only run on Hopper.
#if defined(__CUDACC__)
#define SGEMM_ON_GPU(launch) launch
#else
#define SGEMM_ON_GPU(launch) nullptr
#endif
#if defined(__CUDACC__) && defined(SGEMM_SM90A)
#define SGEMM_ON_HOPPER(launch) launch
#else
#define SGEMM_ON_HOPPER(launch) nullptr
#endif

template <class T>
constexpr Kernel hopper_row(const char* name, const char* family) {
  return basic_row<T>(name, family, T::kIdea, 90, 90, rung_share(name), SGEMM_ON_HOPPER(launch_of<T>()));
}

template <class T>
constexpr Kernel sharing(Kernel kernel) {
  kernel.workspace = SGEMM_ON_HOPPER(T::workspace);
  return kernel;
}

// A row that multiplies fewer significand bits than float32 has.
template <class T>
constexpr Kernel tf32_row(const char* name) {
  Kernel kernel = sharing<T>(hopper_row<T>(name, "tf32"));
  kernel.bits = T::kBits;
  return kernel;
}

template <class T>
constexpr Kernel ieee_row(const char* name) {
  return in_auto(planned_row<T>(name, "ieee", T::kIdea, T::kMinArch, kAnyArch, SGEMM_ON_GPU(T::launch)));
}

template <class T>
constexpr Kernel split_row(const char* name, const char* idea) {
  Kernel kernel = planned_row<T>(name, "split", idea, T::kArch, T::kArch, SGEMM_ON_HOPPER(T::launch));
  kernel.takes_planes = T::kTakesPlanes;
  kernel.auto_from = T::kAutoFrom;
  return in_auto(kernel);
}

template <class T>
constexpr Kernel product_row(const char* name, const char* idea) {
  return in_tiles(T::kTiles, split_row<T>(name, idea));
}

const Kernel kTable[] = {
    kAten,
    row<triple_loop::Rung>("triple_loop", "reference"),
    row<naive::Rung<32>>("naive_32", "ladder"),
    row<coalesced::Rung<8>>("coalesced_8", "ladder"),
    row<coalesced::Rung<16>>("coalesced_16", "ladder"),
    row<coalesced::Rung<32>>("coalesced_32", "ladder"),
    row<shared_tile::Rung<8>>("shared_tile_8", "ladder"),
    row<shared_tile::Rung<16>>("shared_tile_16", "ladder"),
    row<shared_tile::Rung<32>>("shared_tile_32", "ladder"),
    row<padded_tile::Rung<32, 0>>("transposed_tile_32", "ladder"),
    row<padded_tile::Rung<32, 1>>("padded_tile_32", "ladder"),
    row<unrolled_tile::Rung<16>>("unrolled_tile_16", "ladder"),
    row<unrolled_tile::Rung<32>>("unrolled_tile_32", "ladder"),
    row<many_outputs::Rung<32, 32, 32, 1, 1, 32>>("rows_per_thread_1", "ladder"),
    row<many_outputs::Rung<32, 32, 32, 2, 1, 32>>("rows_per_thread_2", "ladder"),
    row<many_outputs::Rung<32, 32, 32, 4, 1, 32>>("rows_per_thread_4", "ladder"),
    row<many_outputs::Rung<32, 32, 32, 8, 1, 32>>("rows_per_thread_8", "ladder"),
    row<many_outputs::Rung<32, 32, 32, 16, 1, 32>>("rows_per_thread_16", "ladder"),
    row<many_outputs::Rung<32, 32, 32, 32, 1, 32>>("rows_per_thread_32", "ladder"),
    row<many_outputs::Rung<16, 32, 32, 1, 2, 1>>("cols_per_thread_2", "ladder"),
    row<many_outputs::Rung<16, 32, 32, 1, 2, 32>>("cols_per_thread_2_unrolled", "ladder"),
    row<thread_tile_1d::Rung<64, 64, 8, 8>>("thread_tile_1d", "ladder"),
    row<vector_prefetch::Rung<32>>("vector_prefetch", "ladder"),
    row<thread_tile_2d::Rung<64, 64, 16, 4, 4>>("thread_tile_2d_64", "ladder"),
    row<thread_tile_2d::Rung<128, 128, 8, 8, 8>>("thread_tile_2d_128", "ladder"),
    row<thread_tile_2d_vector::Rung<128, 128, 8, 8, 8>>("thread_tile_2d_vector", "ladder"),
    row<double_buffer::Rung<128, 128, 8, 8, 8, 1>>("double_buffer", "ladder"),
    row<double_buffer::Rung<128, 128, 8, 8, 8, 4>>("double_buffer_unroll4", "ladder"),
    row<register_buffer::Rung<64, 64, 16, 4, 4>>("register_buffer_64x64x16_4x4", "ladder"),
    row<register_buffer::Rung<64, 64, 32, 4, 4>>("register_buffer_64x64x32_4x4", "ladder"),
    row<register_buffer::Rung<64, 64, 4, 8, 8>>("register_buffer_64x64x4_8x8", "ladder"),
    batch_invariant(row<register_buffer::Rung<64, 64, 8, 8, 8>>("register_buffer_64x64x8_8x8", "ladder")),
    row<register_buffer::Rung<64, 64, 16, 8, 8>>("register_buffer_64x64x16_8x8", "ladder"),
    row<register_buffer::Rung<64, 64, 32, 8, 8>>("register_buffer_64x64x32_8x8", "ladder"),
    row<register_buffer::Rung<128, 128, 16, 8, 8>>("register_buffer_128x128x16_8x8", "ladder"),
    row<register_buffer::Rung<128, 128, 8, 8, 8>>("register_buffer_128x128x8_8x8", "ladder"),
    row<async_copy_ring::Rung>("async_copy_ring", "ladder"),
    hopper_row<tma_producer::Rung>("tma_producer", "ladder"),
    sharing<persistent::Rung>(hopper_row<persistent::Rung>("persistent_stream_k", "ladder")),
    tf32_row<wgmma_tf32::Rung>("wgmma_tf32"),
    tf32_row<wgmma_tf32x3::Rung>("wgmma_tf32x3"),
    planned_row<Large>("ieee_large", "ieee", Large::kIdea, Large::kArch, Large::kArch, SGEMM_ON_HOPPER(Large::launch)),
    streams_16_bits(ieee_row<Skinny>("ieee_skinny")),
    ieee_row<Small>("ieee_small"),
    ieee_row<Tall>("ieee_tall"),
    limited_row<Tiny>("ieee_tiny", "ieee"),
    split_row<SplitProduct<Bf16x6>>("split_bf16x6", "three bfloat16 per element, six tensor-core products"),
    batch_invariant(reads_16_bits(product_row<SplitProduct<Fp16x3>>(
                        "split_fp16x3", "two float16 per element, three products, each result certified")),
                    SplitProduct<Fp16x3>::invariant_plan),
    product_row<SplitProduct<Fp16x3, true>>("split_fp16x3_streamed", "the larger operand, or both, split on the way"),
    for_few_rows<FewRowsProduct>(reads_16_bits(
        split_row<FewRowsProduct>("split_fp16x3_few", "few rows past a weight's planes, its k shared by all blocks"))),
    split_row<TallProduct>("split_fp16x3_tall", "rows streamed past a split B, and split in registers"),
    product_row<Native16>("unsplit", Native16::kIdea),
};

}  // namespace

Backend backend() {
  return {{kTable, static_cast<int>(sizeof kTable / sizeof kTable[0])},
          pack,
          activate,
          split::plane_bytes,
          SGEMM_ON_HOPPER(split::pack_b),
          SGEMM_ON_HOPPER(split::redone)};
}

}  // namespace sgemm::SGEMM_BACKEND
