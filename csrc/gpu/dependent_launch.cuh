// Programmatic dependent launch, on sm_90 and later: a kernel starts before its predecessor has ended, and meanwhile
// does work that needs no memory.
//
// A block calls launch_dependents() after wait_for_predecessor(), so that at most two kernels are in flight. With
// three, the last one's blocks would crowd on few SMs. A product that splits A in registers relies on this order too:
// it reads A without waiting for the convert kernel in front of it. By then the kernel that wrote A has ended, because
// the convert kernel has waited for it.
#pragma once

namespace sgemm {

// Lets the next kernel start, once all blocks have called this or ended.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the preceding kernel has ended and its writes are visible.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace sgemm
