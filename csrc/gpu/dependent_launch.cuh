// Programmatic dependent launch, where there is such (sm_90 and later): a kernel that is launched for it starts before
// the kernel in front of it has ended, and does there what needs no memory.
#pragma once

namespace sgemm {

// The kernel behind this one may start filling the SMs that become free.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the kernel in front has ended and its writes are visible.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace sgemm
