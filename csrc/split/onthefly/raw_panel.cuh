// Raw panels: float32 elements of a stage, copied unchanged to shared memory for the threads that split them.
#pragma once
#include "../../gpu/ptx/async_copy.cuh"
#include "../../gpu/ptx/mbarrier.cuh"
#include "../../gpu/tensor_map.cuh"
#include "../plan/job.h"

namespace sgemm::split {

constexpr int kProducers = 128;  // threads; with a tensor map one of them copies, or one for each operand

// A panel of 128 rows and 64 of k. If memory runs along k, boxes have 16 of k, and a row of a box holds 64 bytes.
// Otherwise boxes have 32 rows, and each of k holds 128 bytes of a box, swizzled.
template <bool ALONG_MN>
struct RawPanel {
  static constexpr int kDepth = kOnTheFlySteps * kStep;
  static constexpr int kBoxRows = ALONG_MN ? 32 : kTile, kBoxDepth = ALONG_MN ? kDepth : 16;
  static constexpr int kBytes = kTile * kDepth * static_cast<int>(sizeof(float));
  static constexpr int kBoxBytes = kBoxRows * kBoxDepth * static_cast<int>(sizeof(float));
  static constexpr int kBoxes = kBytes / kBoxBytes;

  __device__ __forceinline__ static int place(int row, int k) {
    if (ALONG_MN) return row / 32 * kBoxBytes + k * 128 + ((row % 32 / 4 ^ k % 8) << 4) + row % 4 * 4;
    return k / 16 * kBoxBytes + row * 64 + k % 16 * 4;
  }

  static CUtensorMap map(const ConstMatrix& lines, int64_t count) {
    return hopper::tensor_map(lines, count, ALONG_MN ? kBoxRows : kBoxDepth, ALONG_MN ? kBoxDepth : kBoxRows, ALONG_MN);
  }

  // Box `i` of the panel whose first row is `row`: the box's place in a tensor map, except along k.
  struct Box {
    int i, row, first_k;
    hopper::MapPlace place;

    __device__ __forceinline__ Box(const Job& job, const Operand& x, int batch, int row, int i)
        : i(i),
          row(ALONG_MN ? row + i * kBoxRows : row),
          first_k(static_cast<int>(batch * job.k_slice) + (ALONG_MN ? 0 : i * kBoxDepth)),
          place(hopper::place_in_map(x.batch, x.count, job.k_slice ? 0 : batch)) {}

    // Copies the box from `step` of k on, by one thread. Precondition: `full` already expects the bytes.
    __device__ __forceinline__ void copy(const CUtensorMap& map, int step, char* panel, uint64_t* full) const {
      const int k = first_k + step * kStep;
      hopper::copy_tensor_once(panel + i * kBoxBytes, &map, ALONG_MN ? row : k, ALONG_MN ? k : row, place.matrix,
                               place.group, full);
    }
  };

  // Copies the whole panel where there is no tensor map. All producers call this, and each arrives at `full`. The
  // function is not inlined, because threads that split have no registers to spare.
  static __device__ __noinline__ void copy_elements(const Job& job, const Operand& x, int batch, int row, int step,
                                                    char* panel, uint64_t* full) {
    const float* const from = x.data + x.batch.offset(batch);
    const int64_t k0 = int64_t{step} * kStep, depth = job.depth(batch);
#pragma unroll 4
    for (int i = threadIdx.x; i < kTile * kDepth; i += kProducers) {
      const int r = ALONG_MN ? i % kTile : i / kDepth, k = ALONG_MN ? i / kTile : i % kDepth;
      const bool inside = int64_t{row} + r < x.size && k0 + k < depth;
      copy_async<4>(reinterpret_cast<float*>(panel + place(r, k)),
                    inside ? from + (int64_t{row} + r) * x.stride + (k0 + k) * x.k_stride : x.data, inside ? 4 : 0);
    }
    hopper::arrive_after_copies(full);
  }
};

}  // namespace sgemm::split
