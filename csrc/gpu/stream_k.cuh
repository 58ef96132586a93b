// The tile scheduler of persistent blocks: what falls to a block by stream_k.h, in turn.
#pragma once
#include "stream_k.h"

namespace sgemm {

class StreamKScheduler {
 public:
  __device__ __forceinline__ explicit StreamKScheduler(const StreamK& deal)
      : deal_(deal), whole_(blockIdx.x), all_(int64_t{deal.left()} * deal.steps) {
    const int block = blockIdx.x;
    at_ = block < deal.sharing ? block * all_ / deal.sharing : 0;
    end_ = block < deal.sharing ? (block + 1) * all_ / deal.sharing : 0;
  }

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
    const int left_over = static_cast<int>(at_ / deal_.steps), first = static_cast<int>(at_ % deal_.steps);
    const int64_t begin = int64_t{left_over} * deal_.steps;
    const int first_block = owner(begin), last_block = owner(begin + deal_.steps - 1), block = blockIdx.x;
    work = {deal_.whole + left_over,
            first,
            static_cast<int>(min(end_ - at_, int64_t{deal_.steps - first})),
            block - first_block,
            last_block - first_block + 1,
            first_block + left_over};
    at_ += work.steps;
    return true;
  }

 private:
  // The block whose steps the step is one of.
  __device__ __forceinline__ int owner(int64_t step) const {
    return static_cast<int>(((step + 1) * deal_.sharing - 1) / all_);
  }

  const StreamK& deal_;
  int whole_;  // the block's next whole tile
  const int64_t all_;
  int64_t at_, end_;
};

}  // namespace sgemm
