// The launches of a split product's kernels, in files that are compiled side by side: each takes minutes.
#pragma once
#include "../plan/job.h"
#include "../rows.h"

namespace sgemm::split {

// The splitting pass, and factors of k ahead of it, before a product of so many blocks: pass_sm90a.cu.
template <class F>
void launch_pass(const Job& job, bool split_a, bool split_b, int64_t product_blocks, int sms, Stream stream);

// Products of planes, in tiles of TILE_M x TILE_N and clusters of `cluster` blocks: product_sm90a.cu, and
// product_bf16x6_sm90a.cu.
template <class F, int TILE_M, int TILE_N>
void launch_product(const Job& job, int sms, int cluster, Stream stream);

// Those of an A that is streamed, and of B's planes, or of B as it lies in memory: streamed_sm90a.cu.
template <int TILE_M, int TILE_N>
void launch_streamed(const Job& job, bool splits_b, int sms, int cluster, Stream stream);

// The parts of redone(): by each file's kernels, and tall_sm90a.cu's.
template <class F>
Redone redone_in_products();
Redone redone_in_streamed();
Redone redone_in_rows();

}  // namespace sgemm::split
