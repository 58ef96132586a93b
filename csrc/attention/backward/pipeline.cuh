// Tiles, the ring of blocks that one thread fills, and what it shares with the warpgroups that multiply.
//
// A tile of keys is 128 keys of a group, and its blocks are those of Q and dO of all heads of the group. A tile of
// queries is 128 queries of a head, and its blocks are those of V and K. Each warpgroup owns 64 rows of a tile. Thread
// blocks claim all tiles of keys, which are longer, and then those of queries.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../../gpu/pipeline_state.cuh"
#include "../../gpu/ptx/bulk_copy.cuh"
#include "shape.cuh"

namespace sgemm::attention::backward {

constexpr int kThreads = 128 + kConsumers;  // one warpgroup to feed two that multiply
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

// A thread block's tile, and the blocks first to end of the other side that it needs.
template <bool KEYS>
struct Tile {
  int head, of_head;  // of all heads, or of all groups; the tile's number in it
  int first, end;

  // Causal tiles with many blocks come first.
  __device__ __forceinline__ Tile(const Job& job, int index) {
    const int tiles = KEYS ? job.key_tiles : job.query_tiles, heads = KEYS ? job.groups : job.heads;
    const int blocks = KEYS ? job.query_blocks : job.key_blocks;
    const bool causal = job.g.p.causal;
    head = causal ? index % heads : index / tiles;
    of_head = causal ? index / heads : index % tiles;
    if (causal && !KEYS) of_head = tiles - 1 - of_head;
    // At least one block, even if all its queries are before the keys.
    first = causal && KEYS ? min(2 * of_head, blocks - 1) : 0;
    end = causal && !KEYS ? min(2 * of_head + 2, blocks) : blocks;
  }
};

template <class S>
struct Shared {
  uint64_t full[S::kSlots], empty[S::kSlots];
  uint64_t own_full[S::kOwnBuffers][2], own_empty[S::kOwnBuffers][2];  // of each warpgroup's blocks
  // Each slot's second block copies its KeyBlock here, or the beginning of its QueryBlock.
  alignas(16) char about[S::kSlots][kQueryBytes];
  // By tiles' turns and warpgroups. Four tiles: the producer may be two ahead, and what it overwrites is not in use.
  alignas(16) char own[4][2][kKeyBytes];
  int index[4][2];  // of the tile; all_tiles if there are no more
  int again[4][2];  // 1 if the keys have to be recomputed

  __device__ __forceinline__ void init() {
    if (threadIdx.x) return;
    for (int i = 0; i < S::kSlots; ++i) {
      hopper::init_barrier(&full[i], 1);
      hopper::init_barrier(&empty[i], kConsumers / 32);
    }
    for (int i = 0; i < 2 * S::kOwnBuffers; ++i) {
      hopper::init_barrier(&own_full[0][i], 1);
      hopper::init_barrier(&own_empty[0][i], kConsumers / 2 / 32);
    }
    hopper::fence_barrier_init();
  }
};

// Fills the ring, by one thread. Thread blocks claim tiles, so that they are done at about the same time.
template <class S>
class Producer {
  const Job& job_;
  char* const memory_;
  Shared<S>& shared_;
  PipelineState<S::kSlots> at_;
  uint32_t tile_ = 0;  // of the thread block

 public:
  __device__ __forceinline__ Producer(const Job& job, char* memory, Shared<S>& shared)
      : job_(job), memory_(memory), shared_(shared) {}

  __device__ __forceinline__ void run() {
    int index;
#pragma unroll 1
    while ((index = atomicAdd(job_.claims, 1)) < job_.all_tiles)
      if (index < job_.all_key_tiles)
        produce(Tile<true>(job_, index), index);
      else
        produce(Tile<false>(job_, index - job_.all_key_tiles), index);
    for (int warpgroup = 0; warpgroup < 2; ++warpgroup) begin(warpgroup, job_.all_tiles, 0);
  }

 private:
  // Announces a tile to a warpgroup, once its last blocks aren't needed any more. Returns the barrier of its blocks.
  __device__ __forceinline__ uint64_t* begin(int warpgroup, int index, int bytes) {
    const uint32_t buffer = tile_ % S::kOwnBuffers;
    uint64_t* const full = &shared_.own_full[buffer][warpgroup];
    hopper::wait_suspended(&shared_.own_empty[buffer][warpgroup], tile_ / S::kOwnBuffers % 2 ^ 1);
    shared_.index[tile_ % 4][warpgroup] = index;
    hopper::arrive_expecting(full, bytes);
    return full;
  }

  template <bool KEYS>
  __device__ __forceinline__ void produce(const Tile<KEYS>& tile, int index) {
    const int rows = KEYS ? job_.key_blocks : job_.query_blocks;
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < 2; ++warpgroup) {
      // The last tile may have one block only. Its second warpgroup then has the same one, and stores nothing.
      const int block = tile.head * rows + min(tile.of_head * 2 + warpgroup, rows - 1);
      uint64_t* const full = begin(warpgroup, index, 2 * S::kBlock + (KEYS ? kKeyBytes : 0));
      if (KEYS) hopper::copy_bulk(shared_.own[tile_ % 4][warpgroup], job_.keys + block, kKeyBytes, full);
      char* const to = memory_ + tile_ % S::kOwnBuffers * S::kOwnBytes + warpgroup * 2 * S::kBlock;
      hopper::copy_bulk(to, (KEYS ? job_.k : job_.q) + int64_t{block} * S::kBlock, S::kBlock, full);
      hopper::copy_bulk(to + S::kBlock, (KEYS ? job_.v : job_.grad) + int64_t{block} * S::kBlock, S::kBlock, full);
    }
    ++tile_;
    const int heads = KEYS ? job_.share : 1;
#pragma unroll 1
    for (int h = 0; h < heads; ++h) {
      const int head = KEYS ? tile.head * heads + h : tile.head / job_.share;
      const int first = head * (KEYS ? job_.query_blocks : job_.key_blocks);
      // Q comes before dO, and V before K: their products end first. With three slots, their place is filled again
      // while the other block is in use.
#pragma unroll 1
      for (int block = first + tile.first; block < first + tile.end; ++block) {
        push<0>(KEYS ? job_.q : job_.v, block, nullptr);
        if (KEYS)
          push<kQueryBytes>(job_.grad, block, job_.queries + block);
        else
          push<kKeyBytes>(job_.k, block, job_.keys + block);
      }
    }
  }

  template <int ABOUT>
  __device__ __forceinline__ void push(const char* planes, int block, const void* about) {
    uint64_t* const full = &shared_.full[at_.stage];
    hopper::wait_suspended(&shared_.empty[at_.stage], at_.parity ^ 1);
    hopper::arrive_expecting(full, S::kBlock + ABOUT);
    hopper::copy_bulk(memory_ + S::kRing + at_.stage * S::kBlock, planes + int64_t{block} * S::kBlock, S::kBlock, full);
    if (ABOUT) hopper::copy_bulk(shared_.about[at_.stage], about, ABOUT, full);
    at_.advance();
  }
};

// The ring and the own blocks, as a warpgroup sees them.
template <class S>
class Ring {
  Shared<S>& shared_;
  const uint32_t memory_;  // address
  const int warpgroup_;
  // Registers are short: the next slot times 2, plus its parity, in 8 bits; above, the number of the tile.
  uint32_t state_ = 0;

  __device__ __forceinline__ uint32_t next() const { return state_ & 0xff; }

 public:
  using Shape = S;
  using Memory = Shared<S>;

  __device__ __forceinline__ Ring(Memory& shared, char* memory, int warpgroup)
      : shared_(shared), memory_(hopper::shared_address(memory)), warpgroup_(warpgroup) {}

  __device__ __forceinline__ static uint32_t warpgroup_of(uint32_t thread) { return thread / 128 - 1; }

  // ---- tiles

  __device__ __forceinline__ void begin(bool) const {}  // the producer has chosen the blocks
  // Waits for the next tile.
  __device__ __forceinline__ void wait_for_tile() const {
    hopper::wait(&shared_.own_full[tile() % S::kOwnBuffers][warpgroup_], tile() / S::kOwnBuffers % 2);
  }
  __device__ __forceinline__ int index() const {
    return *static_cast<const volatile int*>(&shared_.index[tile() % 4][warpgroup_]);
  }
  __device__ __forceinline__ volatile int& again() const { return shared_.again[tile() % 4][warpgroup_]; }
  __device__ __forceinline__ void next_tile() { state_ += 1 << 8; }
  // Which 64 rows of the tile are the warpgroup's.
  __device__ __forceinline__ int half() const { return warpgroup_; }

  // ---- blocks of the other side

  // Waits for the next block.
  __device__ __forceinline__ void take() {
    hopper::wait(&shared_.full[next() / 2], state_ % 2);
    state_ += 2;
    if (next() >= 2 * S::kSlots) state_ = (state_ & ~0xffu) | (state_ % 2 ^ 1);
  }
  // Returns the slot of the block that was taken `ago` blocks ago; 1 is the last one.
  __device__ __forceinline__ int slot(int ago) const {
    const int slot = static_cast<int>(next() / 2) - ago;
    return slot < 0 ? slot + S::kSlots : slot;
  }
  __device__ __forceinline__ void release(int slot) const {
    if (hopper::elected()) hopper::arrive(&shared_.empty[slot]);
  }
  // Views are made anew for each product; else registers would be kept for them.
  __device__ __forceinline__ AlongDepth along_depth(int slot) const { return AlongDepth(address(slot)); }
  __device__ __forceinline__ AcrossDepth across_depth(int slot) const { return AcrossDepth(address(slot)); }
  // Returns what is known of dO's or K's block in a slot. Only the members of QueryBlock before `row_logit` are there.
  __device__ __forceinline__ const QueryBlock& queries(int slot) const {
    return *reinterpret_cast<const QueryBlock*>(shared_.about[slot]);
  }
  __device__ __forceinline__ const KeyBlock& keys(int slot) const {
    return *reinterpret_cast<const KeyBlock*>(shared_.about[slot]);
  }

  // ---- the warpgroup's own blocks

  // K or Q (0), V or dO (1).
  __device__ __forceinline__ AlongDepth own(int which) const {
    const uint32_t warpgroup = warpgroup_of(hopper::opaque(threadIdx.x));
    return AlongDepth(memory_ + tile() % S::kOwnBuffers * S::kOwnBytes + (warpgroup * 2 + which) * S::kBlock);
  }
  __device__ __forceinline__ void release_own() const {
    if (hopper::elected())
      hopper::arrive(&shared_.own_empty[tile() % S::kOwnBuffers][warpgroup_of(hopper::opaque(threadIdx.x))]);
  }
  __device__ __forceinline__ const KeyBlock& own_keys() const {
    return *reinterpret_cast<const KeyBlock*>(shared_.own[tile() % 4][warpgroup_]);
  }
  __device__ __forceinline__ const float* own_norms(const Job& job, const Tile<true>& tile) const {
    const int block = min(tile.of_head * 2 + warpgroup_, job.key_blocks - 1);
    return job.keys[int64_t{tile.head} * job.key_blocks + block].row_norm;
  }
  __device__ __forceinline__ const QueryBlock& own_queries(const Job& job, const Tile<false>& tile) const {
    return queries_of_head(job, tile.head)[min(tile.of_head * 2 + warpgroup_, job.query_blocks - 1)];
  }
  // Those of a head, one behind the other.
  __device__ __forceinline__ static const QueryBlock* queries_of_head(const Job& job, int head) {
    return job.queries + int64_t{head} * job.query_blocks;
  }

 private:
  __device__ __forceinline__ uint32_t tile() const { return state_ >> 8; }  // its number
  __device__ __forceinline__ uint32_t address(int slot) const {
    return memory_ + S::kRing + hopper::opaque(static_cast<uint32_t>(slot)) * S::kBlock;
  }
};

}  // namespace sgemm::attention::backward
