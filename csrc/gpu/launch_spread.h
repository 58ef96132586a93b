// Launches that spread a kernel's blocks over all SMs.
//
// Idea: blocks of a kernel that overlaps the one in front start where there is place, which then is on the SMs that the
//       one in front doesn't need: a few SMs get as many blocks as they hold, and the others none. Shared memory that
//       a block doesn't use keeps out of its SM what is more than the SM's part of all blocks.
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
// Bytes of an SM, of a block at most, and what each block has that no kernel sees.
struct SharedMemory {
  int of_sm, of_block, reserved;
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

// What a kernel declares of shared memory, the same on all devices.
template <auto KERNEL>
int declared_bytes() {
  static const int bytes = [] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, KERNEL), "cudaFuncGetAttributes");
    return static_cast<int>(attributes.sharedSizeBytes);
  }();
  return bytes;
}

// A kernel that overlaps the one in front where GPUs can, with `bytes` of shared memory beside what it declares.
template <auto KERNEL, class... Params>
void launch_spread(int64_t blocks, int threads, int bytes, int cluster, const Context& context,
                   const Params&... params) {
  const bool overlapping = context.device->code_arch >= 90;
  if (overlapping) {
    const SharedMemory& shared = shared_memory();
    const int declared = declared_bytes<KERNEL>(), most = shared.of_block - declared;
    const int64_t places = clusters_at_once(context.device->sms, std::max(1, cluster)) * std::max(1, cluster);
    const int64_t too_many = ceil_div(blocks, places) + 1;
    const int too_few = static_cast<int>(shared.of_sm / too_many) - shared.reserved - declared;
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
