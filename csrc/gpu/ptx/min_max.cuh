// Minimum and maximum that are NaN if either argument is NaN.
#pragma once

namespace sgemm::hopper {

__device__ __forceinline__ float max_or_nan(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

__device__ __forceinline__ float min_or_nan(float x, float y) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

}  // namespace sgemm::hopper
