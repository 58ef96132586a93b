// The launches of a split product's kernels. They are in separate files, compiled in parallel: each takes minutes.
#pragma once
#include "../../problem/redone.h"
#include "../plan/job.h"

namespace sgemm::split {

// Launches the convert kernel, before a product of `product_blocks` blocks: convert_sm90a.cu.
template <class F>
void launch_convert(const Job& job, bool split_a, bool split_b, int64_t product_blocks, int sms, Stream stream);

// Launches the product of two operands with planes, in tiles of TILE_M x TILE_N, with `blocks` persistent blocks in
// clusters of `cluster`: product_sm90a.cu and product_bf16x6_sm90a.cu.
template <class F, int TILE_M, int TILE_N>
void launch_product(const Job& job, int64_t blocks, int cluster, Stream stream);

// Launches the product of float16 planes that adds up segments of k: product_segments_sm90a.cu.
template <int TILE_M, int TILE_N>
void launch_segments(const Job& job, int64_t blocks, Stream stream);

// Launches the product that splits A on the fly, or both operands: onthefly_sm90a.cu.
template <int TILE_M, int TILE_N>
void launch_onthefly(const Job& job, int64_t blocks, Stream stream);
template <int TILE_M, int TILE_N>
void launch_both(const Job& job, int64_t blocks, Stream stream);

// Launches the product of few columns, of which a tile multiplies `cols`: narrow(), plan.h (few_rows_sm90a.cu).
void launch_few_rows(const Job& job, int cols, int64_t blocks, Stream stream);

// The parts of redone(): the counters of each file's kernels. The last ones are tall_sm90a.cu's.
template <class F>
Redone redone_in_products();
Redone redone_in_segments();
Redone redone_in_onthefly();
Redone redone_in_few_rows();
Redone redone_in_rows();

}  // namespace sgemm::split
