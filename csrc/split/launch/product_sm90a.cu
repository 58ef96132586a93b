// Instantiates the product of float16 planes.
#include "launch_product.cuh"

namespace sgemm::split {

template void launch_product<Fp16x3, kTile, kTile>(const Job&, int64_t, int, Stream);
template void launch_product<Fp16x3, kTile, kTile / 2>(const Job&, int64_t, int, Stream);
template Redone redone_in_products<Fp16x3>();

}  // namespace sgemm::split
