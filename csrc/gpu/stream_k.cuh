// The tile scheduler of persistent blocks: iterates over a block's work tiles in the division of stream_k.h.
#pragma once
#include "stream_k.h"

namespace sgemm {

class StreamKScheduler {
 public:
  // `first`: the block's first whole tile. It has every gridDim.x-th from there on.
  __device__ __forceinline__ explicit StreamKScheduler(const StreamK& deal, int first = blockIdx.x)
      : deal_(deal), whole_(first), at_(first_step(blockIdx.x)), end_(first_step(blockIdx.x + 1)) {}

  // Returns the block's next tile, or part of one, in `work`. Returns false if there is none.
  __device__ __forceinline__ bool next(WorkTile& work) {
    if (whole_ >= deal_.whole) return next_shared(work);
    work = {whole_, 0, deal_.steps, 0, 1, 0};
    whole_ += gridDim.x;
    return true;
  }

  // The same, but only for shared tiles.
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
  // Returns the first shared step of a block; the end for a block that shares nothing.
  __device__ __forceinline__ int first_step(int block) const {
    return block < deal_.sharing ? static_cast<int>(int64_t{block} * deal_.shared_steps() / deal_.sharing)
                                 : deal_.shared_steps();
  }
  // Returns the block that has the shared step.
  __device__ __forceinline__ int owner(int step) const {
    return static_cast<int>(((step + int64_t{1}) * deal_.sharing - 1) / deal_.shared_steps());
  }

  const StreamK& deal_;
  int whole_;  // the block's next whole tile
  int at_;     // the block's next shared step
  const int end_;
};

}  // namespace sgemm
