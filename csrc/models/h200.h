// clang-format off
// The quantities of models.h on one GPU, by `python -m benchmarks fit`; not by hand.
//
// 2026-11-25 00:31 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 1625d35c8597
// 2026-11-25 00:42 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 9a4e3e932833
// 2026-11-25 03:17 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 4879dbd4977d
// 2026-11-28 07:59 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc df4f805cbc89
// 2026-11-28 01:31 UTC, NVIDIA H100 80GB HBM3, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc d0d4e9ce26cf
// 2026-11-28 04:05 UTC, NVIDIA H100 80GB HBM3, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 5cc964c8b1da
// 2026-11-26 21:02 UTC, NVIDIA H100 80GB HBM3, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 9c24d901a150
// 2026-11-26 21:02 UTC, NVIDIA H100 80GB HBM3, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 9c24d901a150
// 2026-11-30 18:56 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 021a64e2e097
// 2026-11-30 19:03 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 55ffbba6ffab
// 2026-11-25 03:44 UTC, NVIDIA H200, driver 580.159.04, SM clock 1928 to 1980 of 1980 MHz, limit 700 W, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 6735277353df
#pragma once
#include "models.h"

namespace sgemm {

constexpr Models kFitted = {
    // Choice
    {
        0.8,  // caution
        0.95,  // caution_long_k
        3e-06,  // launch
        0.88,  // reachable
        2,  // scattered
    },
    // Aten
    {
        2.545e-06,  // launch
        1.036e-08,  // block
        2.493e-08,  // latency
        8.924e-09,  // issue
        4.349e-09,  // ffma
        1.625e-07,  // ends
        1.138,  // along_k
        3.103e-06,  // sum
        4.725e-08,  // sum_part
        0.4382,  // sum_moves
        0.5325,  // bandwidth
        5.721e-07,  // sum_along_k
    },
    // AtenRows
    {
        2.56e-06,  // launch
        5.302e-08,  // row
        5.88,  // rows
        2.444e-08,  // step_across
        1.471e-08,  // step_along_k
        0.7383,  // across
        0.5877,  // along_k
        1.169e-10,  // column
    },
    // AtenVector
    {
        4.523e-06,  // across
        4.049e-06,  // along_k
        0.9832,  // bandwidth
        1e-11,  // row
        5.117e-07,  // sum
        2.061e-06,  // unshared
        1.098e-08,  // unshared_step
        2.101e-08,  // dot_step
    },
    // Skinny
    {
        5.086e-06,  // fixed
        5.423e-06,  // wave
        3.409e-06,  // sum
        1.067,  // read_along_k
        0.875,  // read_along_m
        0.6919,  // read_along_m_16
        0.3202,  // ffma_along_k
        0.2247,  // ffma_across_b
        0.23,  // ffma_across_wide_b
        0.3458,  // ffma_along_m
        5.456e+10,  // block_bandwidth
        1.143,  // scattered
    },
    // Small
    {
        1.229e-06,  // fixed
        3.983e-07,  // turn
        6.576e-08,  // alone
        6.32e-09,  // step
        1.172e-08,  // read
        4.104e-07,  // block
        0.7563,  // slower
        1.47e-06,  // cluster
        6.271e-07,  // next_cluster
        1.988e-06,  // sum
        11.79,  // sum_moves
        0.5432,  // busiest
    },
    // Tall
    {
        2.052e-06,  // fixed
        2.628e-07,  // later_step
        8.326e-09,  // panel
        1.693e-08,  // tile
        2.002e-09,  // four
        3.11e-08,  // step_along_k
        3.589e-08,  // singles
        6.427e-09,  // warp_four
        1.781e-06,  // wave
        3.571e-08,  // stored
        3e-06,  // sum
        1.322,  // bandwidth
    },
    // Tiny
    {
        1.022e-06,  // launch
        6.9e-07,  // step
        2.203e-07,  // element
        43.45,  // read_quad
        54.68,  // read_element
        12.18,  // store_quad
        57.24,  // store_element
        1.731,  // ffma
        1.639,  // bandwidth
    },
    // Large
    {
        7.523e-07,  // launch
        0.8607,  // ffma
        6.674e-06,  // tile
        7.375e-06,  // elements
        2.7e-06,  // exchange
        6.596e-07,  // cluster
        2.125e-05,  // share
        1.152e-06,  // part
        3.461e-06,  // sum
        1.271e-06,  // copy
        0.8293,  // copy_bandwidth
    },
    // Split
    {
        3.449e-06,  // launch
        1.487e-07,  // step
        3.595e-06,  // tile
        0.7238,  // half_step
        1.798e-07,  // cluster
        1.645e-06,  // share
        5.453e-07,  // part
        2.48e-06,  // sum
        3.434,  // sum_moves
        0.8404,  // convert
        1.268,  // convert_across
        1.237,  // convert_unaligned
    },
    // SplitStreamed
    {
        1.676e-06,  // launch
        3.428e-06,  // other_launch
        6.411e-07,  // step
        1.275e-06,  // both_step
        4.329e-06,  // both_tile
        0.7017,  // both_half
        2.003e-06,  // tile
        4.42,  // sum_moves
        0.5459,  // convert
        2.967e-08,  // copied_row
        4.291e-08,  // both_copied_row
        0.9184,  // bandwidth
    },
    // SplitFew
    {
        1.818e-06,  // launch
        1.492,  // convert
        3.301e-07,  // step
        1.663e-09,  // step_column
        3.185e-06,  // tile
        2.247e-06,  // share
        1.391e-07,  // part
        3.203e-09,  // part_column
        0.9531,  // bandwidth
    },
    // SplitTall
    {
        8.818e-07,  // fixed
        1.173e-06,  // fill
        1.912e-07,  // fill_step
        1.202e-08,  // tile
        6.912e-09,  // step
        3.994e-09,  // group
        5.89e-09,  // group_step
        1.446e-07,  // last_group
        1.555e-08,  // unaligned
        1.657e-07,  // added
        2.306e-08,  // stored
        0.891,  // bandwidth
    },
    // Unsplit
    {
        4.189e-06,  // launch
        1.429e-06,  // step
        1.634e-06,  // tile
        0.3977,  // half_step
        0.9995,  // half_tile
        1.146e-06,  // long_step
        0.5365,  // half_long
        7.059e-07,  // cluster
        1.159e-05,  // share
        6.775e-07,  // part
        0.5457,  // bandwidth
        6.7e-11,  // searched
    },
};

constexpr RungShare kRungs[] = {
    {"naive_32", 0.007},
    {"coalesced_8", 0.049},
    {"coalesced_16", 0.071},
    {"coalesced_32", 0.066},
    {"shared_tile_8", 0.063},
    {"shared_tile_16", 0.086},
    {"shared_tile_32", 0.093},
    {"transposed_tile_32", 0.007},
    {"padded_tile_32", 0.066},
    {"unrolled_tile_16", 0.118},
    {"unrolled_tile_32", 0.118},
    {"rows_per_thread_1", 0.119},
    {"rows_per_thread_2", 0.186},
    {"rows_per_thread_4", 0.239},
    {"rows_per_thread_8", 0.284},
    {"rows_per_thread_16", 0.251},
    {"rows_per_thread_32", 0.124},
    {"cols_per_thread_2", 0.098},
    {"cols_per_thread_2_unrolled", 0.143},
    {"thread_tile_1d", 0.128},
    {"vector_prefetch", 0.153},
    {"thread_tile_2d_64", 0.241},
    {"thread_tile_2d_128", 0.363},
    {"thread_tile_2d_vector", 0.499},
    {"double_buffer", 0.566},
    {"double_buffer_unroll4", 0.644},
    {"register_buffer_64x64x16_4x4", 0.455},
    {"register_buffer_64x64x32_4x4", 0.416},
    {"register_buffer_64x64x4_8x8", 0.604},
    {"register_buffer_64x64x8_8x8", 0.634},
    {"register_buffer_64x64x16_8x8", 0.640},
    {"register_buffer_64x64x32_8x8", 0.495},
    {"register_buffer_128x128x16_8x8", 0.683},
    {"register_buffer_128x128x8_8x8", 0.706},
    {"async_copy_ring", 0.747},
    {"tma_producer", 0.770},
    {"persistent_stream_k", 0.777},
    {"wgmma_tf32", 2.724},
    {"wgmma_tf32x3", 0.998},
};

}  // namespace sgemm
