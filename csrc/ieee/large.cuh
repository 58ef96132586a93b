// Large products by FFMA: each product and sum is rounded as float32.
//
// Idea:   few reads of shared memory per FFMA: a thread computes 8 x 16 elements of a 256 x 128 tile, so six 16-byte
//         reads serve 128 FFMAs. A step's fragments are read while the previous step is multiplied. Rows are traversed
//         in alternating directions, so that one of an FFMA's three operands comes from the register file's cache.
// Block:  persistent. Two warpgroups multiply, and one thread fills a ring of stages through tensor maps. Both operands
//         lie along m or n there, 32 of k per stage; operands of other layouts are copied first.
// Order:  blocks take whole tiles while all blocks have equally many. They share the remaining tiles evenly along k,
//         and the last block to arrive adds up a tile's parts, in the order of k. No block waits for another.
// Small problems: tiles of 128 x 128. Two groups of warps share each stage's k, and the blocks of a cluster share the
//         stages. For a long k, slices are separate products, which a second kernel adds up.
// Bound:  the FFMA pipe: 92 % of the loop's instructions are FFMAs.
// Ladder: 15_persistent.cuh has the same skeleton, and is shorter to read.
#pragma once
#include "../gpu/pipeline_state.cuh"
#include "../gpu/hopper.cuh"
#include "../gpu/stream_k.cuh"
#include "../gpu/tensor_map.cuh"
#include "large_epilogue.cuh"

namespace sgemm::ieee {

struct LargeShared {
  uint64_t full[kLargeStages], empty[kLargeStages];
  bool last;         // true in the last block that arrives at a shared tile
  WorkTile redo[2];  // shared tiles with sums that are not finite; count is 0 if there are none
};

// Fills the ring with the steps of one tile or part after the other.
template <class Shape>
class LargeProducer {
 public:
  __device__ __forceinline__ LargeProducer(const LargeJob& job, const OperandMaps& maps, char* ring,
                                           LargeShared& shared)
      : job_(job), maps_(maps), ring_(ring), shared_(shared) {}

  __device__ __forceinline__ void copy(int index, int first, int steps) {
    const TileIndex tile = tile_at(index, job_.tiles_m, job_.tiles_n, kTilesTogether);
    const hopper::MapPlace a = hopper::place_in_map(job_.p.a.batch, maps_.count_a, tile.batch);
    const hopper::MapPlace b = hopper::place_in_map(job_.p.b.batch, maps_.count_b, tile.batch);
    for (int step = first; step < first + steps; ++step) {
      char* stage = ring_ + at_.stage * Shape::kStageBytes;
      uint64_t* full = &shared_.full[at_.stage];
      hopper::wait(&shared_.empty[at_.stage], at_.parity ^ 1);
      hopper::arrive_expecting(full, Shape::kStageBytes);
      hopper::copy_tensor(stage, &maps_.a, tile.row * Shape::kRows, step * Large::BK, a.matrix, a.group, full);
      hopper::copy_tensor(stage + Shape::kBytesA, &maps_.b, tile.col * Shape::kCols, step * Large::BK, b.matrix,
                          b.group, full);
      at_.advance();
    }
  }

 private:
  const LargeJob& job_;
  const OperandMaps& maps_;
  char* const ring_;
  LargeShared& shared_;
  PipelineState<kLargeStages> at_;
};

// Keeps the FFMAs in source order: the compiler would reorder them and lose the hits in the register file's cache.
__device__ __forceinline__ void multiply_add(float& sum, float x, float y) {
  asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(x), "f"(y));
}

__device__ __forceinline__ void read_four(float* to, uint32_t address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(address));
}

// The consumers' side of the ring.
template <class Shape>
class LargeConsumer {
 public:
  __device__ __forceinline__ LargeConsumer(LargeShared& shared, const char* ring, int t)
      : shared_(shared), leader_(t % 32 == 0) {
    const LargePlace place(t % Shape::kGroupThreads);
    const int k = t / Shape::kGroupThreads * (Large::BK / Shape::kGroups);  // the group's first k of a stage
    a_ = hopper::shared_address(ring) + 4 * place.row + k * Shape::kPitchA;
    b_ = hopper::shared_address(ring) + Shape::kBytesA + 4 * place.col + k * Shape::kPitchB;
  }

  // Multiplies the next `steps` stages. Precondition: steps >= 1. The compiler emits a leaner loop if `steps` comes
  // straight from the kernel's parameters, because `steps` is then the same in all threads of a warp.
  __device__ __forceinline__ void multiply(LargeSums& sum, int steps) {
    constexpr int kDepth = 8;  // k per unrolled round; longer loops miss the instruction cache
    constexpr int kRounds = Large::BK / Shape::kGroups / kDepth;
#pragma unroll
    for (int i = 0; i < Large::TM; ++i)
#pragma unroll
      for (int j = 0; j < Large::TN; ++j) sum[i][j] = 0;
    float x[2][Large::TM], y[2][Large::TN];
    const auto read = [&](int to, uint32_t a, uint32_t b) {
#pragma unroll
      for (int j = 0; j < Large::TN; j += 4) read_four(&y[to][j], b + 4 * LargePlace::col_on(j));
#pragma unroll
      for (int i = 0; i < Large::TM; i += 4) read_four(&x[to][i], a + 4 * LargePlace::row_on(i));
    };
    hopper::wait(&shared_.full[at_.stage], at_.parity);
    uint32_t a = a_ + at_.stage * Shape::kStageBytes, b = b_ + at_.stage * Shape::kStageBytes;
    read(0, a, b);
    uint64_t* used_up = nullptr;
#pragma unroll 1
    for (int round = steps * kRounds; round > 0; --round) {
      uint32_t next_a = a + kDepth * Shape::kPitchA, next_b = b + kDepth * Shape::kPitchB;
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        if (k == kDepth - 1 && (round - 1) % kRounds == 0) {
          // The fragments from the previous stage have been multiplied by now.
          __syncwarp();  // in all lanes
          if (used_up && leader_) hopper::arrive(used_up);
          used_up = &shared_.empty[at_.stage];
          at_.advance();
          if (round > 1) {
            hopper::wait(&shared_.full[at_.stage], at_.parity);
            next_a = a_ + at_.stage * Shape::kStageBytes;
            next_b = b_ + at_.stage * Shape::kStageBytes;
          } else {  // no next stage: reads the current one again, which is still valid
            next_a = a;
            next_b = b;
          }
        }
        if (k + 1 < kDepth)
          read((k + 1) % 2, a + (k + 1) * Shape::kPitchA, b + (k + 1) * Shape::kPitchB);
        else
          read(0, next_a, next_b);
#pragma unroll
        for (int i = 0; i < Large::TM; ++i)
#pragma unroll
          for (int q = 0; q < Large::TN; ++q) {
            const int j = i % 2 ? Large::TN - 1 - q : q;
            multiply_add(sum[i][j], x[k % 2][i], y[k % 2][j]);
          }
      }
      a = next_a;
      b = next_b;
    }
    __syncwarp();
    if (leader_) hopper::arrive(used_up);
  }

 private:
  LargeShared& shared_;
  const bool leader_;
  uint32_t a_, b_;  // the thread's quads in the first stage
  PipelineState<kLargeStages> at_;
};

__device__ __forceinline__ void init(LargeShared& shared) {
  hopper::init_ring(shared.full, shared.empty, Large::kThreads);
  if (threadIdx.x < 2) shared.redo[threadIdx.x].count = 0;
  __syncthreads();
}

// Calls `produce` in one thread, and `consume` in the threads that multiply.
template <class Produce, class Consume>
__device__ __forceinline__ void share_out(const Produce& produce, const Consume& consume) {
  if (threadIdx.x >= Large::kThreads) {
    hopper::release_registers<40>();
    if (threadIdx.x > Large::kThreads) return;
    hopper::wait_for_predecessor();
    produce();
  } else {
    hopper::acquire_registers<232>();
    hopper::wait_for_predecessor();
    hopper::launch_dependents();
    consume();
  }
}

__global__ void __launch_bounds__(Large::kBlockThreads, 1)
    large(const __grid_constant__ LargeJob job, const __grid_constant__ OperandMaps maps) {
  using Shape = LargeShape<1>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ LargeShared shared;
  init(shared);
  StreamKScheduler share(job.deal);
  WorkTile part;
  const int t = threadIdx.x;
  const auto produce = [&] {
    LargeProducer<Shape> producer(job, maps, ring, shared);
    for (int tile = blockIdx.x; tile < job.deal.whole; tile += gridDim.x) producer.copy(tile, 0, job.deal.steps);
    while (share.next_shared(part)) producer.copy(part.tile, part.first, part.steps);
  };
  const auto consume = [&] {
    LargeConsumer<Shape> consumer(shared, ring, t);
    LargeSums sum = {};
    for (int tile = blockIdx.x; tile < job.deal.whole; tile += gridDim.x) {
      if (job.deal.steps) consumer.multiply(sum, job.deal.steps);
      store<Shape>(job, tile, sum, t);
    }
    while (share.next_shared(part)) {
      consumer.multiply(sum, part.steps);
      if (part.count == 1 || fix_up(job, part, sum, shared.last, shared.redo[part.tile % 2], t))
        store<Shape>(job, part.tile, sum, t);
    }
    hopper::sync_some(1, Large::kThreads);
    for (int i = 0; i < 2; ++i)
      if (shared.redo[i].count) redo_parts(job, shared.redo[i].tile, shared.redo[i].place, shared.redo[i].count, t);
  };
  share_out(produce, consume);
}

// A cluster of BLOCKS blocks computes one tile, or a slice of its k.
template <int BLOCKS>
__global__ void __launch_bounds__(Large::kBlockThreads, 1)
    large_in_clusters(const __grid_constant__ LargeJob job, const __grid_constant__ OperandMaps maps) {
  using Shape = LargeShape<2>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ LargeShared shared;
  init(shared);
  const int rank = hopper::cluster_rank(), tile = blockIdx.x / BLOCKS, t = threadIdx.x;
  const int slice = job.slices == 1 ? 0 : tile / (job.tiles_m * job.tiles_n);
  const int64_t part = slice * BLOCKS + rank, parts = job.slices * BLOCKS;
  const int first = static_cast<int>(job.deal.steps * part / parts);
  const int steps = static_cast<int>(job.deal.steps * (part + 1) / parts) - first;
  share_out([&] { LargeProducer<Shape>(job, maps, ring, shared).copy(tile, first, steps); },
            [&] {
              LargeSums sum;
              LargeConsumer<Shape>(shared, ring, t).multiply(sum, steps);
              store_cluster_tile<Shape, BLOCKS>(job, tile, sum, ring, t);
            });
}

}  // namespace sgemm::ieee
