// The properties of a GPU that the cost models need.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

// Asked once per device, then remembered. Throws std::runtime_error.
const Device& cuda_device(int index);

// The one that launches go to: PyTorch may not have told the CUDA runtime yet which it takes for the current one.
int current_cuda_device();
int cuda_device_count();

}  // namespace sgemm
