// What the cost model wants to know of a GPU.
#pragma once
#include "gemm.h"

namespace sgemm {

// Asked once a device, then remembered. Throws std::runtime_error.
const Device& cuda_device(int index);

}  // namespace sgemm
