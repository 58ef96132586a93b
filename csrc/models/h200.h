// The quantities of models.h on one GPU, by `python -m benchmarks fit`; not by hand.
//
// 2026-11-24 23:55 UTC, NVIDIA H200, driver 580.159.04, clocks unknown, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc 548c321ebfbb
// 2026-11-21 11:34 UTC, NVIDIA H200, driver 580.159.04, SM clock 1980 of 1980 MHz, limit 700 W, PyTorch 2.11.0+cu130 (CUDA 13.0), torch_sgemm 0.1.0, csrc dc9d07e15019
#pragma once
#include "models.h"

namespace sgemm {

constexpr Models kFitted = {
    // Choice
    {
        0.88,  // caution
        3e-06,  // launch
        0.88,  // reachable
        2,  // scattered
    },
    // Aten
    {
        2.515e-06,  // launch
        2.143e-08,  // block
        2.741e-08,  // latency
        4.867e-09,  // issue
        5.048e-09,  // ffma
        1.991e-07,  // ends
        1.097,  // along_k
        2.908e-06,  // sum
        3.467e-08,  // sum_part
        0.9094,  // sum_moves
        0.4931,  // bandwidth
        4.831e-07,  // sum_along_k
    },
    // AtenRows
    {
        2.815e-06,  // launch
        8.186e-08,  // row
        3.487,  // rows
        9.628e-09,  // step_across
        5.857e-09,  // step_along_k
        0.495,  // across
        0.3651,  // along_k
        6.853e-11,  // column
    },
    // AtenVector
    {
        2e-06,  // across
        3.347e-06,  // along_k
        0.6709,  // bandwidth
        1e-11,  // row
        1e-06,  // sum
        2e-06,  // unshared
        1e-08,  // unshared_step
        2e-06,  // dot
        1e-08,  // dot_step
    },
    // Skinny
    {
        6.389e-06,  // fixed
        5.205e-06,  // wave
        4.221e-06,  // sum
        1.028,  // read_along_k
        0.9563,  // read_along_m
        0.445,  // read_along_m_16
        0.3419,  // ffma_along_k
        0.2507,  // ffma_across_b
        0.2449,  // ffma_across_wide_b
        0.3166,  // ffma_along_m
        5.729e+10,  // block_bandwidth
        1.338,  // scattered
    },
    // Small
    {
        1.181e-06,  // fixed
        7.651e-07,  // turn
        4.818e-09,  // step
        1.207e-08,  // step_area
        3.643e-07,  // block_area
        0.7939,  // along_k
        0.9865,  // singles
        2.803e-07,  // cluster
        1.454e-06,  // sum
        14,  // sum_moves
        0.7368,  // busiest
        0.8134,  // bandwidth
    },
    // Tall
    {
        2.139e-06,  // fixed
        3.718e-07,  // later_step
        1.209e-08,  // panel
        1.302e-08,  // tile
        2.62e-09,  // four
        2.76e-08,  // step_along_k
        3.896e-08,  // singles
        6.959e-09,  // warp_four
        1.739e-06,  // wave
        4.125e-08,  // stored
        3e-06,  // sum
        1.032,  // bandwidth
    },
    // Tiny
    {
        1.751e-06,  // launch
        4.206e-07,  // step
        3.375e-07,  // element
        20.5,  // read_quad
        36.28,  // read_element
        8.415,  // store_quad
        74.34,  // store_element
        1.908,  // ffma
        1.203,  // bandwidth
        13.52,  // scattered
    },
    // Large
    {
        2.5e-06,  // launch
        0.87,  // ffma
        4e-06,  // tile
        1.3e-05,  // elements
        2e-06,  // exchange
        1e-06,  // cluster
        1.4e-05,  // share
        1.5e-06,  // part
        4e-06,  // sum
        2e-06,  // copy
        0.7,  // copy_bandwidth
    },
    // Split
    {
        2.527e-06,  // launch
        1.417e-07,  // step
        2.244e-06,  // tile
        0.6303,  // half_step
        5.401e-07,  // cluster
        1.693e-06,  // share
        6.805e-07,  // part
        2.828e-06,  // sum
        4.363,  // sum_moves
        0.7756,  // split
        1.201,  // split_across
        1.226,  // split_unaligned
    },
    // SplitFused
    {
        1.665e-06,  // launch
        1.132e-06,  // step
        2.698e-06,  // tile
        0.8101,  // half_step
        0.95,  // half_tile
        1.484e-06,  // cluster
        3.893e-06,  // sum
        4.116,  // sum_moves
        2.227,  // unaligned
        0.513,  // bandwidth
    },
    // SplitTall
    {
        1.406e-06,  // fixed
        7.036e-07,  // fill
        3.283e-07,  // fill_step
        8.935e-09,  // tile
        9.251e-09,  // step
        1.778e-09,  // group
        1.139e-08,  // group_step
        1.051e-07,  // last_group
        2.026e-08,  // unaligned
        1e-07,  // added
        1.101e-08,  // stored
        0.7823,  // bandwidth
    },
};

constexpr RungShare kRungs[] = {
    {"naive_32", 0.007},
    {"coalesced_8", 0.048},
    {"coalesced_16", 0.049},
    {"coalesced_32", 0.046},
    {"shared_tile_8", 0.063},
    {"shared_tile_16", 0.086},
    {"shared_tile_32", 0.093},
    {"transposed_tile_32", 0.007},
    {"padded_tile_32", 0.067},
    {"unrolled_tile_16", 0.118},
    {"unrolled_tile_32", 0.118},
    {"rows_per_thread_1", 0.114},
    {"rows_per_thread_2", 0.183},
    {"rows_per_thread_4", 0.248},
    {"rows_per_thread_8", 0.285},
    {"rows_per_thread_16", 0.237},
    {"rows_per_thread_32", 0.118},
    {"cols_per_thread_2", 0.099},
    {"cols_per_thread_2_unrolled", 0.145},
    {"thread_tile_1d", 0.212},
    {"vector_prefetch", 0.153},
    {"thread_tile_2d_64", 0.247},
    {"thread_tile_2d_128", 0.358},
    {"thread_tile_2d_vector", 0.488},
    {"double_buffer", 0.572},
    {"double_buffer_unroll4", 0.648},
    {"register_buffer_64x64x16_4x4", 0.454},
    {"register_buffer_64x64x32_4x4", 0.413},
    {"register_buffer_64x64x4_8x8", 0.498},
    {"register_buffer_64x64x8_8x8", 0.637},
    {"register_buffer_64x64x16_8x8", 0.639},
    {"register_buffer_64x64x32_8x8", 0.509},
    {"register_buffer_128x128x16_8x8", 0.676},
    {"register_buffer_128x128x8_8x8", 0.570},
};

}  // namespace sgemm
