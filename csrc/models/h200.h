// clang-format off
// The quantities of models.h on one GPU, by `python -m benchmarks fit`; not by hand.
//
// 2026-11-30 21:09 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 295b6507a785
// 2026-11-25 03:44 UTC, NVIDIA H200, driver 580.159.04, SM clock 1928 to 1980 of 1980 MHz, limit 700 W, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 6735277353df
#pragma once
#include "models.h"

namespace sgemm {

constexpr Models kFitted = {
    // Choice
    {
        0.84,  // caution
        1,  // caution_long_k
        3e-06,  // launch
        0.88,  // reachable
        2,  // scattered
    },
    // Aten
    {
        2.394e-06,  // launch
        2.22e-08,  // block
        2.965e-08,  // latency
        7.91e-09,  // issue
        4.815e-09,  // ffma
        1.83e-07,  // ends
        1.053,  // along_k
        3.17e-06,  // sum
        4.03e-08,  // sum_part
        0.3888,  // sum_moves
        0.4912,  // bandwidth
        1.487e-07,  // sum_along_k
    },
    // AtenRows
    {
        2.1e-06,  // launch
        2.658e-07,  // row
        10.44,  // rows
        2.015e-08,  // step_across
        2.662e-09,  // step_along_k
        0.5892,  // across
        0.276,  // along_k
        6.174e-11,  // column
    },
    // AtenVector
    {
        4.073e-06,  // across
        2.951e-06,  // along_k
        0.8516,  // bandwidth
        1e-11,  // row
        1.675e-06,  // sum
        2.285e-06,  // unshared
        1.149e-08,  // unshared_step
        2.139e-08,  // dot_step
    },
    // Skinny
    {
        4.629e-06,  // fixed
        5.453e-06,  // wave
        2.299e-06,  // sum
        0.9554,  // read_along_k
        0.7198,  // read_along_m
        0.4449,  // read_along_m_16
        0.3254,  // ffma_along_k
        0.2813,  // ffma_across_b
        0.2443,  // ffma_across_wide_b
        0.3351,  // ffma_along_m
        5.499e+10,  // block_bandwidth
        1.263,  // scattered
    },
    // Small
    {
        1.163e-06,  // fixed
        3.8e-07,  // turn
        6.281e-08,  // alone
        6.951e-09,  // step
        1.16e-08,  // read
        4.044e-07,  // block
        0.8208,  // slower
        8.426e-07,  // cluster
        4.69e-07,  // next_cluster
        2.005e-06,  // sum
        9.799,  // sum_moves
        0.5887,  // busiest
    },
    // Tall
    {
        2.024e-06,  // fixed
        2.716e-07,  // later_step
        8.342e-09,  // panel
        2.307e-08,  // tile
        9.84e-10,  // four
        4.119e-08,  // step_along_k
        5.011e-08,  // singles
        1.15e-08,  // warp_four
        1.698e-06,  // wave
        4.317e-08,  // stored
        3e-06,  // sum
        1.339,  // bandwidth
    },
    // Tiny
    {
        1.018e-06,  // launch
        6.192e-07,  // step
        2.103e-07,  // element
        52.9,  // read_quad
        57.34,  // read_element
        12.26,  // store_quad
        63.33,  // store_element
        1.706,  // ffma
        1.557,  // bandwidth
    },
    // Large
    {
        4.654e-07,  // launch
        0.8529,  // ffma
        6.859e-06,  // tile
        9.304e-06,  // elements
        2.955e-06,  // exchange
        6.663e-07,  // cluster
        1.861e-05,  // share
        1.288e-06,  // part
        2.29e-06,  // sum
        1.226e-06,  // copy
        0.5764,  // copy_bandwidth
    },
    // Split
    {
        2.935e-06,  // launch
        1.475e-07,  // step
        3.431e-06,  // tile
        0.8038,  // half_step
        3.061e-07,  // cluster
        1.519e-06,  // share
        5.564e-07,  // part
        2.594e-06,  // sum
        4.423,  // sum_moves
        0.8849,  // convert
        1.303,  // convert_across
        1.347,  // convert_unaligned
    },
    // SplitStreamed
    {
        1.5e-06,  // launch
        3.415e-06,  // other_launch
        6.176e-07,  // step
        1.257e-06,  // both_step
        4.536e-06,  // both_tile
        0.7149,  // both_half
        2.298e-06,  // tile
        4.114,  // sum_moves
        0.5595,  // convert
        2.937e-08,  // copied_row
        4.411e-08,  // both_copied_row
        0.9785,  // bandwidth
    },
    // SplitFew
    {
        2.103e-06,  // launch
        0.1572,  // convert
        3.63e-07,  // step
        1.731e-09,  // step_column
        3.146e-06,  // tile
        1.418e-06,  // share
        1.885e-07,  // part
        4.468e-09,  // part_column
        1.083,  // bandwidth
    },
    // SplitTall
    {
        9.809e-07,  // fixed
        9.131e-07,  // fill
        1.587e-07,  // fill_step
        3.884e-08,  // tile
        3.257e-09,  // step
        4.696e-09,  // group
        5.709e-09,  // group_step
        2.803e-07,  // last_group
        1.716e-08,  // unaligned
        1.491e-07,  // added
        1.538e-08,  // stored
        0.7528,  // bandwidth
    },
    // Unsplit
    {
        3.922e-06,  // launch
        1.951e-06,  // step
        1.351e-06,  // tile
        0.5875,  // half_step
        0.7324,  // half_tile
        1.202e-06,  // long_step
        0.5708,  // half_long
        9.64e-07,  // cluster
        6.953e-06,  // share
        7.096e-07,  // part
        0.2735,  // bandwidth
        4.297e-11,  // searched
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
