// Warps that split keys and values into planes, a block of 32 KiB at a time, with one scale for each block, while
// others multiply.
//
// OWN: one tile reads a group's blocks, and its thread block converts them into the ring itself, by four warps, whose
// first thread loads the queries as well. Else any thread block converts for all, into the workspace, by the three
// warps beside the producer's, and blocks are claimed in the order of their use. A claimed block is converted without
// waiting for another thread block, so that those which wait for it always go on, even if only one is running.
#pragma once
#include "producer.cuh"
#include "step_order.cuh"

namespace sgemm::attention {

template <class S, bool OWN>
class Converter {
  static constexpr int kBoxBytes = 64 * 128;
  static constexpr uint32_t kWarps = OWN ? 4 : 3;
  static constexpr int kUnits = 8 * S::kRawBoxes / S::kRawParts;  // of a part: 8 rows and 32 columns each

  const Job& job_;
  const CUtensorMap &queries_, &keys_, &values_;
  char* const memory_;  // queries, and behind them the ring
  char* const raw_;     // boxes of 64 rows and 32 columns, swizzled
  Shared<S>& shared_;
  uint32_t parity_ = 0;
  // The leading thread has its claim here, or its tile and the number of the block. Thread 0, which loads queries, has
  // their tile and the number of tiles before it.
  int ticket_ = OWN ? blockIdx.x : 0, of_tile_ = 0;

 public:
  __device__ __forceinline__ Converter(const Job& job, const CUtensorMap& queries, const CUtensorMap& keys,
                                       const CUtensorMap& values, char* memory, Shared<S>& shared)
      : job_(job),
        queries_(queries),
        keys_(keys),
        values_(values),
        memory_(memory),
        raw_(memory + S::kBytes - S::kRawBytes),
        shared_(shared) {}

  __device__ __forceinline__ void run() {
    if (leads()) {
      if (!OWN) ticket_ = atomicAdd(job_.claims, 1);
      shared_.next[parity_] = block_of_ticket();
#pragma unroll 1
      for (int part = 0; part < S::kRawParts; ++part) load_next(part);
      take_ticket();
    }
    sync();
    PipelineState<S::kSlots> at;
#pragma unroll 1
    for (BlockOfKeys block = shared_.next[parity_]; block.exists; block = shared_.next[parity_]) {
      if (OWN && thread() == 0 && block.of_group == 0 && !block.values) {
        PipelineState<S::kQueryBuffers> to;
        to.stage = of_tile_ % S::kQueryBuffers;
        to.parity = of_tile_ / S::kQueryBuffers % 2;
        load_queries<S>(job_, queries_, tile_at<S>(job_, ticket_), memory_, shared_, to);
        ticket_ += gridDim.x;
        ++of_tile_;
      }
      const uint32_t of_warp = largest_of_warp(), order = block.values ? 0 : order_of_keys();
      if (leads()) shared_.next[parity_] = block_of_ticket();
      const uint32_t largest = largest_of_block(of_warp);
      if constexpr (OWN) {
        hopper::wait_suspended(&shared_.empty[at.stage], at.parity ^ 1);
        if (leads()) shared_.scales[at.stage] = make_float4(scale_of(largest), __uint_as_float(order), 0, 0);
        split(memory_ + S::kQueryBuffers * S::kQueryBytes + at.stage * kBlockBytes, largest);
        if (leads()) hopper::arrive(&shared_.full[at.stage]);
      } else {
        const int place = block.group * job_.blocks_of_group + block.of_group;
        uint32_t* const ready = (block.values ? job_.v_ready : job_.k_ready) + place;
        if (leads())
          (block.values ? job_.v_scales : job_.k_scales)[place] =
              make_float4(scale_of(largest), __uint_as_float(order), 0, 0);
        char* planes = (block.values ? job_.v : job_.k) + int64_t{place} * kBlockBytes;
        asm volatile("" : "+l"(planes));  // else its summands are kept in registers
        split(planes, largest);
        if (leads()) hopper::publish(ready);
      }
      if (leads()) take_ticket();
      at.advance();
    }
  }

 private:
  // Values that derive from the thread are computed anew: registers are short.
  __device__ __forceinline__ static uint32_t thread() { return hopper::opaque(threadIdx.x); }
  __device__ __forceinline__ static uint32_t warp() { return thread() / 32 - (4 - kWarps); }
  __device__ __forceinline__ static bool leads() { return thread() == 96; }

  __device__ __forceinline__ void sync() const { hopper::sync_some(6, 32 * kWarps); }

  // Takes the leading thread's next ticket: a claim, or the next block of the thread block's tiles, K0, V0, K1 ...
  __device__ __forceinline__ void take_ticket() {
    if (!OWN) {
      ticket_ = atomicAdd(job_.claims, 1);
    } else if (++of_tile_ == 2 * tile_at<S>(job_, ticket_).blocks) {
      of_tile_ = 0;
      ticket_ += gridDim.x;
    }
  }
  __device__ __forceinline__ BlockOfKeys block_of_ticket() const {
    if (!OWN) return claimed_block(job_, ticket_);
    if (ticket_ >= job_.tiles) return {};
    return {true, of_tile_ % 2 == 1, tile_at<S>(job_, ticket_).head / (job_.p.heads / job_.p.groups), of_tile_ / 2};
  }

  // Copies a part of the next block's elements, by one thread.
  __device__ __forceinline__ void load_next(int part) const {
    constexpr int kBoxes = S::kRawBoxes / S::kRawParts;
    const BlockOfKeys& block = shared_.next[parity_];
    if (!block.exists) return;
    const hopper::MapPlace at =
        hopper::place_in_map(block.values ? job_.p.v.batch : job_.p.k.batch, job_.all_groups, block.group);
    hopper::arrive_expecting(&shared_.raw_full[part], kBoxes * kBoxBytes);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const int box = part * kBoxes + i;
      hopper::copy_tensor_once(raw_ + box * kBoxBytes, block.values ? &values_ : &keys_, box % S::kRawColumns * 32,
                               block.of_group * S::kKeys + box / S::kRawColumns * 64, at.matrix, at.group,
                               &shared_.raw_full[part]);
    }
  }

  // A thread has 8 columns of a row of each unit. Returns their place in a unit, and in a piece of a plane.
  __device__ __forceinline__ static uint32_t place_in_unit() {
    const uint32_t lane = thread() % 32, row = lane / 4;
    return row * 128 + ((lane % 4 * 2 ^ row) << 4);
  }
  __device__ __forceinline__ static uint32_t place_in_plane() {
    const uint32_t lane = thread() % 32, row = lane / 4;
    return row * 128 + ((lane % 4 ^ row) << 4);
  }

  __device__ __forceinline__ void read(uint32_t unit, uint32_t place, float4 (&x)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = *reinterpret_cast<const float4*>(raw_ + unit * 1024 + (place ^ i * 16));
  }

  // Writes them to both planes.
  __device__ __forceinline__ static void write(char* planes, uint32_t unit, uint32_t place, const float4 (&x)[2],
                                               float factor) {
    const uint32_t box = unit / 8, column = box % S::kRawColumns;
    char* const to = planes + column / 2 * (S::kKeys * 128) + box / S::kRawColumns * kBoxBytes + unit % 8 * 1024 +
                     (place ^ column % 2 * 64);
    uint4 hi, lo;
    split_pair(x[0].x * factor, x[0].y * factor, hi.x, lo.x);
    split_pair(x[0].z * factor, x[0].w * factor, hi.y, lo.y);
    split_pair(x[1].x * factor, x[1].y * factor, hi.z, lo.z);
    split_pair(x[1].z * factor, x[1].w * factor, hi.w, lo.w);
    *reinterpret_cast<uint4*>(to) = hi;
    *reinterpret_cast<uint4*>(to + S::kPlane) = lo;
  }

  // A warp's units of a part: the first and the end. The last of three warps, which leads, has a smaller share.
  static constexpr uint32_t kShare = OWN ? kUnits / 4 : kUnits * 3 / 8;
  __device__ __forceinline__ uint32_t first_unit(uint32_t part) const { return part * kUnits + warp() * kShare; }
  __device__ __forceinline__ uint32_t end_unit(uint32_t part) const {
    return min(first_unit(part) + kShare, (part + 1) * kUnits);
  }

  // Returns the largest magnitude, or NaN, among the warp's elements of the block, which have to arrive.
  __device__ __forceinline__ uint32_t largest_of_warp() {
    float largest[2] = {};
#pragma unroll 1
    for (int part = 0; part < S::kRawParts; ++part) {
      hopper::wait_suspended(&shared_.raw_full[part], parity_);
      const uint32_t first = first_unit(part), last = end_unit(part) - 1, place = place_in_unit();
      constexpr int kAhead = OWN ? 2 : 3;
      float4 x[kAhead][2];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) read(min(first + i, last), place, x[i]);
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float4& y = x[i % kAhead][j];
          largest[0] = hopper::max_or_nan(largest[0], hopper::max_or_nan(fabsf(y.x), fabsf(y.y)));
          largest[1] = hopper::max_or_nan(largest[1], hopper::max_or_nan(fabsf(y.z), fabsf(y.w)));
        }
        if (i + kAhead < kShare) read(min(first + i + kAhead, last), place, x[i % kAhead]);
      }
    }
    parity_ ^= 1;
    return __reduce_max_sync(~0u, __float_as_uint(hopper::max_or_nan(largest[0], largest[1])));
  }

  __device__ __forceinline__ uint32_t largest_of_block(uint32_t of_warp) const {
    if (threadIdx.x % 32 == 0) shared_.largest[warp()] = of_warp;
    sync();
    uint32_t largest = shared_.largest[0];
#pragma unroll
    for (uint32_t w = 1; w < kWarps; ++w) largest = max(largest, shared_.largest[w]);
    return largest;
  }

  // By the leading thread's warp.
  __device__ __forceinline__ uint32_t order_of_keys() const {
    if (warp() != kWarps - 1) return 0;
    uint32_t largest = 0;  // of the lane's columns of a box, which belong to one of its two steps
    return order_of_steps<S::kDepth>([&](int step) {
      if (step % 2 == 0) {
        float4 x[2];
        read(step / 2 * 8, place_in_unit(), x);
        largest = max(largest_of(x[0]), largest_of(x[1]));
      }
      return static_cast<int>(thread() / 2 % 2) == step % 2 ? largest : 0;
    });
  }

  // Writes a block's planes, and loads the next block's parts as soon as there is room.
  __device__ __forceinline__ void split(char* planes, uint32_t largest) const {
    const float factor = factor_of(largest);
#pragma unroll 1
    for (int part = 0; part < S::kRawParts; ++part) {
      const uint32_t end = end_unit(part), from = place_in_unit(), to = place_in_plane();
      float4 x[2];
      read(first_unit(part), from, x);
#pragma unroll 2
      for (uint32_t unit = first_unit(part); unit < end; ++unit) {
        float4 next_x[2];
        read(min(unit + 1, end - 1), from, next_x);
        write(planes, unit, to, x, factor);
        x[0] = next_x[0];
        x[1] = next_x[1];
      }
      if (OWN) hopper::fence_async_proxy();
      sync();
      if (leads()) load_next(part);
    }
  }
};

}  // namespace sgemm::attention
