// Launches that spread a kernel's blocks over all SMs.
//
// Idea: a kernel that overlaps the one in front starts its blocks on the SMs that are free by then: these few get as
//       many blocks as they hold, and the others none. So a block asks for shared memory that it doesn't use, with
//       which an SM holds no more than its part of all blocks.
// Cost: kernels of several streams share an SM less often.
#pragma once
#include "launch.h"
#if defined(__CUDACC__)
#include <algorithm>
#include <vector>

#include "clusters.h"
#include "launch_cluster.cuh"
#endif

namespace sgemm::SGEMM_BACKEND {

#if defined(__CUDACC__)
struct SharedMemory {
  int of_sm, of_block;  // bytes; a block's at most
  int reserved;         // for the runtime, in each block
};
inline const SharedMemory& shared_memory() {
  static const std::vector<SharedMemory> of_devices = [] {
    int count;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    std::vector<SharedMemory> all(count);
    for (int i = 0; i < count; ++i) {
      const auto get = [&](int& value, cudaDeviceAttr attribute) {
        check(cudaDeviceGetAttribute(&value, attribute, i), "cudaDeviceGetAttribute");
      };
      get(all[i].of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
      get(all[i].of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
      get(all[i].reserved, cudaDevAttrReservedSharedMemoryPerBlock);
    }
    return all;
  }();
  int device;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return of_devices[device];
}

// A kernel's static shared memory, the same on all devices.
template <auto KERNEL>
int static_bytes() {
  static const int bytes = [] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, KERNEL), "cudaFuncGetAttributes");
    return static_cast<int>(attributes.sharedSizeBytes);
  }();
  return bytes;
}

// A kernel that overlaps the one in front where GPUs can, with `bytes` of dynamic shared memory or more.
template <auto KERNEL, class... Params>
void launch_spread(int64_t blocks, int threads, int bytes, int cluster, const Context& context,
                   const Params&... params) {
  const bool overlapping = context.device->code_arch >= 90;
  if (overlapping) {
    const SharedMemory& shared = shared_memory();
    const int fixed = static_bytes<KERNEL>(), most = shared.of_block - fixed;
    const int together = std::max(1, cluster);
    const int64_t places = std::max<int64_t>(1, clusters_at_once(context.device->sms, together) * together);
    const int64_t too_many = ceil_div(blocks, places) + 1;
    const int too_few = static_cast<int>(shared.of_sm / too_many) - shared.reserved - fixed;
    bytes = std::clamp(too_few + 1, bytes, most);
    allow_shared_bytes<KERNEL>(most);
  }
  launch(KERNEL, blocks, threads, bytes, cluster, overlapping, context.stream, params...);
}
#else
template <auto KERNEL, class... Params>
void launch_spread(int64_t blocks, int threads, int, int, const Context& context, const Params&... params) {
  launch_blocks(KERNEL, static_cast<unsigned>(blocks), threads, context.stream, params...);
}
#endif

}  // namespace sgemm::SGEMM_BACKEND
