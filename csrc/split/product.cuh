// The product of split operands on Hopper's tensor cores, with float32 accuracy.
//
// Idea:   16-bit wgmma adds with 25 bits and cuts off, so long sums drift. Here a sum lives in the tensor cores for 64
// of
//         k only (32 if k is small): hi * hi goes to a fresh accumulator that is added to a float32 one in the ordinary
//         way, while the tensor cores work on the corrections, which are 2^11 times smaller (2^8 in bfloat16) and have
//         an accumulator of their own.
// Block:  a persistent block of three warpgroups works on 128 x 128 tiles. One thread of the first keeps a ring of
// stages
//         filled with bulk copies; each of the others owns 64 x 128 of the tile: 192 accumulators a thread.
// Bound:  the tensor cores (256 cycles for a 16-bit product of a stage) and the chip's power.
// Small problems: the blocks of a cluster share a tile, each with a part of k; each finishes a part of the columns.
#pragma once
#include "format.cuh"
#include "job.h"
#include "redo.cuh"
#include "tile.cuh"

namespace sgemm::split {

constexpr int kProductThreads = 384;

template <class F>
struct Ring {
  static constexpr int kOperandBytes = kShape<F>.planes * kPanelBytes;
  static constexpr int kStageBytes = 2 * kOperandBytes;
  static constexpr int kStages = 7 / kShape<F>.planes;
  static constexpr int kBytes = kStages * kStageBytes;
};

// A place in the ring, and the parity of the round.
template <int STAGES>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ int64_t panel_of(const Operand& x, int batch, int tile) {
  return int64_t{x.count == 1 ? 0 : batch} * x.tiles + tile;
}

struct ProductShared {
  uint64_t full[7], empty[7];  // of the ring's stages
  uint64_t words_full[2], words_empty[2];
  uint32_t marked;                          // the guard has marked something
  alignas(16) uint32_t words[2][2][kTile];  // (tile's parity, operand, row)
};

template <class F>
__device__ void produce(const Job& job, char* ring, ProductShared& shared, int first, int stride, int step0,
                        int step1) {
  using R = Ring<F>;
  Cursor<R::kStages> at;
  Cursor<2> words;
  for (int t = first; t < job.tiles; t += stride) {
    const TileIndex tile = tile_at(job, t);
    const int64_t row = panel_of(job.a, tile.batch, tile.row), col = panel_of(job.b, tile.batch, tile.col);
    hopper::wait(&shared.words_empty[words.stage], words.parity ^ 1);
    hopper::arrive_expecting(&shared.words_full[words.stage], 2 * kTile * sizeof(uint32_t));
    uint32_t(&to)[2][kTile] = shared.words[words.stage];
    hopper::copy_bulk(to[0], job.a.words + row * kTile, sizeof to[0], &shared.words_full[words.stage]);
    hopper::copy_bulk(to[1], job.b.words + col * kTile, sizeof to[1], &shared.words_full[words.stage]);
    words.advance();
    const char* a = job.a.planes + (row * job.steps + step0) * R::kOperandBytes;
    const char* b = job.b.planes + (col * job.steps + step0) * R::kOperandBytes;
    for (int step = step0; step < step1; ++step) {
      char* stage = ring + at.stage * R::kStageBytes;
      hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
      hopper::arrive_expecting(&shared.full[at.stage], R::kStageBytes);
      hopper::copy_bulk(stage, a, R::kOperandBytes, &shared.full[at.stage]);
      hopper::copy_bulk(stage + R::kOperandBytes, b, R::kOperandBytes, &shared.full[at.stage]);
      a += R::kOperandBytes;
      b += R::kOperandBytes;
      at.advance();
    }
  }
}

// An operand's panels in shared memory as wgmma's descriptors see them; distances in units of 16 bytes.
template <bool ALONG_MN>
struct PanelView {
  uint64_t first;                                   // the first plane, the warpgroup's rows
  static constexpr int kHalf = ALONG_MN ? 128 : 2;  // to the second 16 of k
  static constexpr int kSecondPlane = ALONG_MN ? 512 : 4;
  static constexpr int kSecondPair = kPanelBytes / 16;
  // `block`: 64 rows of the panel.
  __device__ __forceinline__ PanelView(uint32_t address, int block)
      : first(hopper::matrix_descriptor(address + block * (ALONG_MN ? 4096 : 8192), ALONG_MN ? 4096 : 16, 1024)) {}
  __device__ __forceinline__ uint64_t plane(int stage_offset, int index, int half) const {
    return first + stage_offset + index / 2 * kSecondPair + index % 2 * kSecondPlane + half * kHalf;
  }
};

// The products of one stage: hi * hi to `fresh`, which starts anew if `restart`; the others to `correction`.
template <class F, bool A_ALONG_M, bool B_ALONG_N>
__device__ __forceinline__ void multiply_stage(float (&fresh)[64], float (&correction)[64],
                                               const PanelView<A_ALONG_M>& a, const PanelView<B_ALONG_N>& b, int offset,
                                               bool first, bool restart) {
  using T = typename F::Element;
  const auto product = [&](float(&d)[64], int i, int j, int half, bool add) {
    hopper::multiply<T, A_ALONG_M, B_ALONG_N>(d, a.plane(offset, i, half), b.plane(offset, j, half), add);
  };
  hopper::fence_products();
  product(fresh, 0, 0, 0, !restart);
  product(fresh, 0, 0, 1, true);
  hopper::commit_products();
  product(correction, 0, 1, 0, !first);
  product(correction, 0, 1, 1, true);
  product(correction, 1, 0, 0, true);
  product(correction, 1, 0, 1, true);
  if constexpr (kShape<F>.planes == 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      product(correction, 0, 2, half, true);
      product(correction, 1, 1, half, true);
      product(correction, 2, 0, half, true);
    }
  }
  hopper::commit_products();
}

// Adds up the parts of k that a cluster's blocks hold. Block r gets the whole sums of its share of each thread's
// elements, the r-th 64 / BLOCKS of them, added in the order of the ranks. The ring serves as mailbox: (rank, quad,
// thread) float4.
template <int BLOCKS>
__device__ __forceinline__ void add_up_cluster(float (&sum)[64], char* ring, int t, uint32_t rank) {
  constexpr int kShare = 64 / BLOCKS;
  hopper::sync_cluster();  // no block reads its ring any more
  const uint32_t place = hopper::shared_address(ring) + (rank * (kShare / 4) * kConsumers + t) * sizeof(float4);
#pragma unroll
  for (int owner = 0; owner < BLOCKS; ++owner) {
    if (owner == rank) continue;
    const uint32_t mailbox = hopper::map_to_rank(place, owner);
#pragma unroll
    for (int e = 0; e < kShare; e += 4)
      hopper::store_in_cluster(mailbox + e * kConsumers * 4, &sum[owner * kShare + e]);
  }
  hopper::sync_cluster();
  const float4* mailbox = reinterpret_cast<const float4*>(ring) + t;
#pragma unroll
  for (int owner = 0; owner < BLOCKS; ++owner) {
    if (owner != rank) continue;
#pragma unroll
    for (int e = 0; e < kShare; e += 4) {
      float4 total = make_float4(0, 0, 0, 0);
      float* own = &sum[owner * kShare + e];
#pragma unroll
      for (int r = 0; r < BLOCKS; ++r) {
        const float4 part =
            r == owner ? make_float4(own[0], own[1], own[2], own[3]) : mailbox[(r * (kShare / 4) + e / 4) * kConsumers];
        total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
      }
      own[0] = total.x;
      own[1] = total.y;
      own[2] = total.z;
      own[3] = total.w;
    }
  }
}

template <class F, bool A_ALONG_M, bool B_ALONG_N>
__device__ void consume(const Job& job, char* ring, ProductShared& shared, int first, int stride, int steps,
                        uint32_t rank, uint32_t blocks) {
  using R = Ring<F>;
  const int t = threadIdx.x - 128, warpgroup = t / 128;
  const bool leader = t % 32 == 0;
  const uint32_t base = hopper::shared_address(ring);
  const PanelView<A_ALONG_M> a(base, warpgroup);
  const PanelView<B_ALONG_N> b(base + R::kOperandBytes, 0);
  float sum[64], fresh[64], correction[64];
  Cursor<R::kStages> at;
  Cursor<2> words;
  for (int index = first; index < job.tiles; index += stride) {
#pragma unroll
    for (int e = 0; e < 64; ++e) sum[e] = 0;
    int previous = 0;
    for (int step = 0; step < steps; ++step) {
      hopper::wait(&shared.full[at.stage], at.parity);
      multiply_stage<F, A_ALONG_M, B_ALONG_N>(fresh, correction, a, b, at.stage * (R::kStageBytes / 16), step == 0,
                                              (step & job.promotion) == 0);
      hopper::wait_products<1>();  // hi * hi is done, and with it the corrections of the stage before
      hopper::fence_registers(fresh);
      if (step > 0 && leader) hopper::arrive(&shared.empty[previous]);
      if ((step & job.promotion) == job.promotion || step + 1 == steps) {
#pragma unroll
        for (int e = 0; e < 64; ++e) sum[e] += fresh[e];
      }
      previous = at.stage;
      at.advance();
    }
    hopper::wait_products<0>();
    hopper::fence_registers(correction);
    if (leader) hopper::arrive(&shared.empty[previous]);
#pragma unroll
    for (int e = 0; e < 64; ++e) sum[e] = fmaf(correction[e], F::kCorrection, sum[e]);
    if (blocks == 2) add_up_cluster<2>(sum, ring, t, rank);
    if (blocks == 4) add_up_cluster<4>(sum, ring, t, rank);

    hopper::wait(&shared.words_full[words.stage], words.parity);
    const uint32_t(&scales)[2][kTile] = shared.words[words.stage];
    const int quarters = 4 / static_cast<int>(blocks);
    const TileOutput output(job, tile_at(job, index), scales, t, static_cast<int>(rank) * quarters, quarters);
    uint32_t mark = 0;
    if (__any_sync(~0u, output.uncertain(scales))) {
      float copy[64];  // indexed at run time, so in local memory
#pragma unroll
      for (int e = 0; e < 64; ++e) copy[e] = sum[e];
      mark = output.store_certified(copy, scales[1], index);
    } else if (output.plain()) {
      output.store_pairs(sum, scales[1]);
    } else {
      output.store_each(sum, scales[1]);
    }
    if (leader) {
      job.marks[(int64_t{index} * 4 + rank) * 8 + t / 32] = mark;
      if (mark) atomicOr(&shared.marked, 1u);
    }
    if (leader) hopper::arrive(&shared.words_empty[words.stage]);
    words.advance();
  }
  sync_consumers();
  if (shared.marked)
    for (int index = first; index < job.tiles; index += stride)
      redo(job, index, rank, t, *reinterpret_cast<RedoShared*>(ring));
}

template <class F, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1) split_product(const __grid_constant__ Job job) {
  extern __shared__ __align__(1024) char ring[];
  __shared__ ProductShared shared;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Ring<F>::kStages; ++i) {
      hopper::init_barrier(&shared.full[i], 1);
      hopper::init_barrier(&shared.empty[i], kConsumers / 32);
    }
    for (int i = 0; i < 2; ++i) {
      hopper::init_barrier(&shared.words_full[i], 1);
      hopper::init_barrier(&shared.words_empty[i], kConsumers / 32);
    }
    shared.marked = 0;
    hopper::fence_barrier_init();
  }
  __syncthreads();
  hopper::launch_dependents();
  hopper::wait_for_predecessor();

  const uint32_t rank = hopper::cluster_rank(), blocks = hopper::cluster_size();
  const int first = blockIdx.x / blocks, stride = gridDim.x / blocks;
  const int step0 = job.steps * rank / blocks, step1 = job.steps * (rank + 1) / blocks;
  if (threadIdx.x < 128) {
    hopper::release_registers<40>();
    if (threadIdx.x == 0) produce<F>(job, ring, shared, first, stride, step0, step1);
    __syncwarp();
    if (blocks > 1) {  // the two barriers of add_up_cluster(): a cluster has one tile
      hopper::sync_cluster();
      hopper::sync_cluster();
    }
  } else {
    hopper::acquire_registers<232>();
    consume<F, A_ALONG_M, B_ALONG_N>(job, ring, shared, first, stride, step1 - step0, rank, blocks);
  }
}

}  // namespace sgemm::split
