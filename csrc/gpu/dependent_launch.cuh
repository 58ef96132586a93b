// Programmatic dependent launch, where there is such (sm_90 and later): a kernel that is launched for it starts before
// the kernel in front of it has ended, and does there what needs no memory.
//
// A block calls launch_dependents() behind wait_for_predecessor(): no more than two kernels are in flight then. Of
// three, the last one's blocks would crowd on few SMs. A streamed product relies on it, too: it reads A without waiting
// for the pass in front of it, and what wrote A has ended when the pass's blocks have waited.
#pragma once

namespace sgemm {

// The kernel behind this one may start, once all blocks have called this or ended.
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
