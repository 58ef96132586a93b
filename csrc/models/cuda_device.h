// The properties of a GPU that the cost models need.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

// Returns a device's properties, queried once and then cached. Throws std::runtime_error.
const Device& cuda_device(int index);

// Returns the device that launches go to. It may differ from PyTorch's current device, which PyTorch may not have set
// in the CUDA runtime yet.
int current_cuda_device();
int cuda_device_count();

}  // namespace sgemm
