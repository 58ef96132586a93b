// Instantiates the product of bfloat16 planes.
#include "launch_product.cuh"

namespace sgemm::split {

template void launch_product<Bf16x6, kTile, kTile>(const Job&, int64_t, int, Stream);
template Redone redone_in_products<Bf16x6>();

}  // namespace sgemm::split
