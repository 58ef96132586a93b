// The product of split operands on Hopper's tensor cores, with float32 accuracy.
//
// Idea:   16-bit wgmma adds with 25 bits and cuts off, so long sums drift. Here a sum lives in the tensor cores for
//         32 of k only (64, where additions would cost time): hi * hi goes to a fresh accumulator that is added to a
//         float32 one in the ordinary way, while the tensor cores work on the corrections, which are 2^11 times
//         smaller (2^8 in bfloat16) and have an accumulator of their own.
// Block:  a persistent block of three warpgroups works on 128 x 128 tiles. One thread of the first keeps a ring of
//         stages filled with bulk copies; each of the others owns 64 x 128 of the tile: 192 accumulators a thread.
// Bound:  the tensor cores (256 cycles for a 16-bit product of a stage) and the chip's power.
// Small problems: the blocks of a cluster share a tile, each with a part of k; each finishes a part of the columns.
// Tiles left over when all blocks have had equally many are shared likewise, through device memory.
#pragma once
#include "cluster_sum.cuh"
#include "format.cuh"
#include "job.h"
#include "part_sum.cuh"
#include "redo.cuh"

namespace sgemm::split {

constexpr int kProductThreads = 384;

// Stages of both operands' panels in as much shared memory as PAIRS stages of a pair of planes take.
template <class F, int PAIRS>
struct Ring {
  static constexpr int kOperandBytes = kShape<F>.planes * kPanelBytes;
  static constexpr int kStageBytes = 2 * kOperandBytes;
  static constexpr int kStages = PAIRS / kShape<F>.planes;
  static constexpr int kBytes = kStages * kStageBytes;
};

template <class F>
using ProductRing = Ring<F, 6>;

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

// A tile, or part of the k of one that is left over.
struct Item {
  int tile;
  int step0, step1;
  int part;  // -1 if the tile is the block's, or its cluster's
};

// A block's share of the work: which items, and of a tile's k the steps that fall to its rank in the cluster.
struct Share {
  uint32_t rank, blocks;  // in the cluster
  int first, stride;      // items
  int step0, step1;

  // Clusters of 1, 2 or 4: no division, which would take longer than all that is done meanwhile.
  __device__ __forceinline__ explicit Share(const Job& job)
      : rank(hopper::cluster_rank()),
        blocks(hopper::cluster_size()),
        first(blockIdx.x >> blocks / 2),
        stride(gridDim.x >> blocks / 2),
        step0(job.steps * rank >> blocks / 2),
        step1(job.steps * (rank + 1) >> blocks / 2) {}

  __device__ __forceinline__ Item item(const Job& job, int index) const {
    if (index < job.whole) return {index, step0, step1, -1};
    const int part = (index - job.whole) % job.parts;
    return {job.whole + (index - job.whole) / job.parts, job.steps * part / job.parts,
            job.steps * (part + 1) / job.parts, part};
  }
};

__device__ __forceinline__ int64_t panel_of(const Operand& x, int batch, int tile) {
  return int64_t{x.count == 1 ? 0 : batch} * x.tiles + tile;
}

struct ProductShared {
  uint64_t full[6], empty[6];  // of the ring's stages
  uint64_t words_full[2], words_empty[2];
  ClusterBarriers cluster;
  uint32_t marked;                          // the guard has marked something
  uint32_t last;                            // of the blocks that share a tile
  alignas(16) uint32_t words[2][2][kTile];  // (tile's parity, operand, row)

  // A warp initialises them. Full stages of a ring wait for `writers`, words for theirs. `blocks` of the cluster.
  __device__ __forceinline__ void init(int stages, int writers, int word_writers, uint32_t blocks) {
    const int i = threadIdx.x % 32;
    if (i < stages) {
      hopper::init_barrier(&full[i], writers);
      hopper::init_barrier(&empty[i], kConsumers / 32);
    }
    if (i < 2) {
      hopper::init_barrier(&words_full[i], word_writers);
      hopper::init_barrier(&words_empty[i], kConsumers / 32);
    }
    if (blocks > 1) cluster.init(i, blocks);
    if (i == 0) marked = 0;
    hopper::fence_barrier_init();
  }
};

// The planes were scaled beforehand; online_scale.cuh has the other way.
struct FixedScales {
  using Shared = ProductShared;
  static constexpr bool kKnown = true;
  __device__ __forceinline__ static void agree(Shared&, int, int, uint32_t, uint32_t, float (&)[64]) {}
  __device__ __forceinline__ static auto words(const Shared& shared, int stage, uint32_t) -> const
      uint32_t (&)[2][kTile] {
    return shared.words[stage];
  }
};

template <class F>
__device__ void produce(const Job& job, char* ring, ProductShared& shared, const Share& share) {
  using R = ProductRing<F>;
  Cursor<R::kStages> at;
  Cursor<2> words;
  for (int index = share.first; index < job.items; index += share.stride) {
    const Item item = share.item(job, index);
    const TileIndex tile = tile_at(job, item.tile);
    const int64_t row = panel_of(job.a, tile.batch, tile.row), col = panel_of(job.b, tile.batch, tile.col);
    hopper::wait(&shared.words_empty[words.stage], words.parity ^ 1);
    hopper::arrive_expecting(&shared.words_full[words.stage], 2 * kTile * sizeof(uint32_t));
    uint32_t(&to)[2][kTile] = shared.words[words.stage];
    hopper::copy_bulk(to[0], job.a.words + row * kTile, sizeof to[0], &shared.words_full[words.stage]);
    hopper::copy_bulk(to[1], job.b.words + col * kTile, sizeof to[1], &shared.words_full[words.stage]);
    words.advance();
    const char* a = job.a.planes + (row * job.steps + item.step0) * R::kOperandBytes;
    const char* b = job.b.planes + (col * job.steps + item.step0) * R::kOperandBytes;
    for (int step = item.step0; step < item.step1; ++step) {
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

// The products of one stage of a tile's rows.
template <class F, bool A_ALONG_M, bool B_ALONG_N>
struct StageProducts {
  const PanelView<A_ALONG_M>& a;
  const PanelView<B_ALONG_N>& b;
  const int offset;  // of the stage in the ring, in units of 16 bytes

  // d += plane i of A times plane j of B; d starts anew with the first half of the stage unless `add`.
  __device__ __forceinline__ void product(float (&d)[64], int i, int j, int half, bool add) const {
    hopper::multiply<typename F::Element, A_ALONG_M, B_ALONG_N>(d, a.plane(offset, i, half), b.plane(offset, j, half),
                                                                add);
  }

  __device__ __forceinline__ void main(float (&d)[64], bool add) const {
    product(d, 0, 0, 0, add);
    product(d, 0, 0, 1, true);
    hopper::commit_products();
  }

  __device__ __forceinline__ void corrections(float (&d)[64], bool add) const {
    product(d, 0, 1, 0, add);
    product(d, 0, 1, 1, true);
    product(d, 1, 0, 0, true);
    product(d, 1, 0, 1, true);
    if constexpr (kShape<F>.planes == 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        product(d, 0, 2, half, true);
        product(d, 1, 1, half, true);
        product(d, 2, 0, half, true);
      }
    }
    hopper::commit_products();
  }
};

// hi * hi is added to the sum while the tensor cores work on the corrections, which stay there for all of k. The result
// takes the place of the corrections: the accumulators' registers are used for nothing else.
template <class F, class R, bool A_ALONG_M, bool B_ALONG_N>
struct KeepCorrections {
  template <class OnFull>
  __device__ __forceinline__ static void tile(const Job& job, ProductShared& shared, const PanelView<A_ALONG_M>& a,
                                              const PanelView<B_ALONG_N>& b, Cursor<R::kStages>& at, int t, int steps,
                                              float (&correction)[64], const OnFull& on_full) {
    const bool leader = t % 32 == 0;
    float fresh[64], sum[64];
#pragma unroll
    for (int e = 0; e < 64; ++e) sum[e] = 0;
    int previous = 0;
    for (int step = 0; step < steps; ++step) {
      hopper::wait(&shared.full[at.stage], at.parity);
      on_full();
      const StageProducts<F, A_ALONG_M, B_ALONG_N> stage = {a, b, at.stage * (R::kStageBytes / 16)};
      hopper::fence_products();
      stage.main(fresh, (step & job.promotion) != 0);
      stage.corrections(correction, step > 0);
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
    for (int e = 0; e < 64; ++e) correction[e] = fmaf(correction[e], F::kCorrection, sum[e]);
  }
};

// Until the kernel in front has ended and the cluster's other blocks have started.
__device__ __forceinline__ void enter_cluster(uint32_t blocks) {
  if (blocks > 1) hopper::arrive_cluster_relaxed();
  hopper::wait_for_predecessor();
  if (blocks > 1) hopper::wait_cluster();
}

// `on_full` is called for each stage that is full.
template <class F, class R, class Scales, template <class, class, bool, bool> class Multiply, bool A_ALONG_M,
          bool B_ALONG_N, class OnFull>
__device__ void consume(const Job& job, char* ring, float* staging, typename Scales::Shared& shared, int t,
                        const Share& share, const OnFull& on_full) {
  const uint32_t rank = share.rank, blocks = share.blocks;
  const int warpgroup = t / 128;
  const bool leader = t % 32 == 0;
  const uint32_t base = hopper::shared_address(ring);
  const PanelView<A_ALONG_M> a(base, warpgroup);
  const PanelView<B_ALONG_N> b(base + R::kOperandBytes, 0);
  float sum[64];
  Cursor<R::kStages> at;
  Cursor<2> words;
  for (int index = share.first; index < job.items; index += share.stride) {
    const Item item = share.item(job, index);
    Multiply<F, R, A_ALONG_M, B_ALONG_N>::tile(job, shared, a, b, at, t, item.step1 - item.step0, sum, on_full);
    hopper::wait(&shared.words_full[words.stage], words.parity);
    if (blocks > 1) Scales::agree(shared, words.stage, t, rank, blocks, sum);
    if (blocks == 2) add_up_cluster<2>(shared.cluster, sum, ring, t, rank);
    if (blocks == 4) add_up_cluster<4>(shared.cluster, sum, ring, t, rank);
    if constexpr (Scales::kKnown)
      if (item.part >= 0 && !add_up_parts(job, item.tile - job.whole, item.part, sum, shared.last, t)) break;
    const int quarters = 4 / static_cast<int>(blocks), first = static_cast<int>(rank) * quarters;
    const TileOutput output(job, tile_at(job, item.tile), Scales::words(shared, words.stage, blocks), first, quarters,
                            hopper::opaque(t));
    const uint32_t mark = output.store(sum, staging, item.tile);
    __syncwarp();  // all lanes have read the words
    if (leader) {
      job.marks[(int64_t{item.tile} * 4 + rank) * 8 + t / 32] = mark;
      if (mark) atomicOr(&shared.marked, 1u);
      hopper::arrive(&shared.words_empty[words.stage]);
    }
    words.advance();
  }
  sync_consumers();
  if (shared.marked)
    for (int index = share.first; index < job.items; index += share.stride) {
      const Item item = share.item(job, index);
      if (item.part < 0 || shared.last) redo(job, item.tile, rank, t, *reinterpret_cast<RedoShared*>(ring));
    }
}

template <class F, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1) split_product(const __grid_constant__ Job job) {
  extern __shared__ __align__(1024) char ring[];
  __shared__ ProductShared shared;
  const Share share(job);
  if (threadIdx.x < 32) shared.init(ProductRing<F>::kStages, 1, 1, share.blocks);
  __syncthreads();
  hopper::launch_dependents();
  enter_cluster(share.blocks);

  if (threadIdx.x < 128) {
    hopper::release_registers<40>();
    if (threadIdx.x == 0) produce<F>(job, ring, shared, share);
  } else {
    hopper::acquire_registers<232>();
    float* staging = reinterpret_cast<float*>(ring + ProductRing<F>::kBytes);
    consume<F, ProductRing<F>, FixedScales, KeepCorrections, A_ALONG_M, B_ALONG_N>(job, ring, staging, shared,
                                                                                   threadIdx.x - 128, share, [] {});
  }
}

}  // namespace sgemm::split
