// The tile scheduler of persistent blocks: what falls to a block by stream_k.h, in turn.
#pragma once
#include "stream_k.h"

namespace sgemm {

class StreamKScheduler {
 public:
  __device__ __forceinline__ explicit StreamKScheduler(const StreamK& deal)
      : deal_(deal), whole_(blockIdx.x), at_(first_step(blockIdx.x)), end_(first_step(blockIdx.x + 1)) {}

  // The block's next tile, or part of one. False if there is none.
  __device__ __forceinline__ bool next(WorkTile& work) {
    if (whole_ >= deal_.whole) return next_shared(work);
    work = {whole_, 0, deal_.steps, 0, 1, 0};
    whole_ += gridDim.x;
    return true;
  }

  // Of those left over alone.
  __device__ __forceinline__ bool next_shared(WorkTile& work) {
    if (at_ >= end_) return false;
    const int left_over = at_ / deal_.steps, first = at_ % deal_.steps, begin = left_over * deal_.steps;
    const int first_block = owner(begin), last_block = owner(begin + deal_.steps - 1), block = blockIdx.x;
    work = {deal_.whole + left_over,
            first,
            min(end_ - at_, deal_.steps - first),
            block - first_block,
            last_block - first_block + 1,
            first_block + left_over};
    at_ += work.steps;
    return true;
  }

 private:
  // The first step of a block; of one that shares nothing, the end.
  __device__ __forceinline__ int first_step(int block) const {
    return block < deal_.sharing ? static_cast<int>(int64_t{block} * deal_.shared_steps() / deal_.sharing)
                                 : deal_.shared_steps();
  }
  // The block whose steps the step is one of.
  __device__ __forceinline__ int owner(int step) const {
    return static_cast<int>(((step + int64_t{1}) * deal_.sharing - 1) / deal_.shared_steps());
  }

  const StreamK& deal_;
  int whole_;  // the block's next whole tile
  int at_;     // and its next step of those left over
  const int end_;
};

}  // namespace sgemm
