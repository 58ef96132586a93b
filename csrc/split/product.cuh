// The product of split operands on Hopper's tensor cores, with float32 accuracy.
//
// Idea:   16-bit wgmma adds with 25 bits and cuts off, so long sums drift. Here a sum lives in the tensor cores for
//         32 of k only (64, where additions would cost time): hi * hi goes to a fresh accumulator that is added to a
//         float32 one in the ordinary way, while the tensor cores work on the corrections, which are 2^11 times
//         smaller (2^8 in bfloat16) and have an accumulator of their own.
// Block:  a persistent block of three warpgroups works on 128 x 128 tiles. One thread of the first keeps a ring of
//         stages filled with bulk copies; each of the others owns 64 x 128 of the tile: 192 accumulators per thread.
//         Tiles of half the size are for small problems, and for those that have no more rows or columns.
// Bound:  the tensor cores (256 cycles for a 16-bit product of a stage) and the chip's power.
// Small problems: the blocks of a cluster share a tile, each with a part of k; each finishes a part of the columns.
// Tiles left over when all blocks have had equally many are shared likewise, through device memory.
#pragma once
#include "../gpu/fixup.cuh"
#include "../gpu/pipeline_state.cuh"
#include "cluster_reduction.cuh"
#include "format.cuh"
#include "redo.cuh"
#include "tile_scheduler.cuh"

namespace sgemm::split {

constexpr int kProductThreads = 384;

// Stages of both operands' panels, one behind the other.
template <class F, class SHAPE, int STAGES>
struct Ring {
  using Shape = SHAPE;
  static constexpr int kStages = STAGES;
  static constexpr int kBytesA = kPairs<F> * Shape::kRows * kRowBytes;
  static constexpr int kBytesB = kPairs<F> * Shape::kCols * kRowBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kBytes = kStages * kStageBytes;
};

constexpr int kMaxStages = 8;
template <class F, class Shape>
using ProductRing = Ring<F, Shape, (Shape::kHalfSize ? kMaxStages : 6) / kPairs<F>>;

struct ProductShared {
  uint64_t full[kMaxStages], empty[kMaxStages];  // of the ring's stages
  uint64_t words_full[2], words_empty[2];
  ClusterBarriers cluster;
  uint32_t marked;                          // the guard has marked something
  uint32_t last;                            // of the blocks that share a tile
  alignas(16) uint32_t words[2][2][kTile];  // (tile's parity, operand, row)
  TileIndex tiles[2];                       // that the words are of

  // A warp initialises them. Full stages of a ring wait for `writers`, words for theirs. `blocks` of the cluster.
  template <class R>
  __device__ __forceinline__ void init(int writers, int word_writers, uint32_t blocks) {
    const int i = threadIdx.x % 32;
    if (i < R::kStages) {
      hopper::init_barrier(&full[i], writers);
      hopper::init_barrier(&empty[i], kConsumers / 32);
    }
    if (i < 2) {
      hopper::init_barrier(&words_full[i], word_writers);
      hopper::init_barrier(&words_empty[i], kConsumers / 32);
    }
    if (blocks > 1) cluster.init(i, blocks, R::Shape::kSums);
    if (i == 0) marked = 0;
    hopper::fence_barrier_init();
  }
};

// The planes were scaled beforehand; online_scale.cuh has the other way.
struct FixedScales {
  using Shared = ProductShared;
  static constexpr bool kKnown = true;
  __device__ __forceinline__ static void tighten(Shared&, int, int) {}
  template <class Sums>
  __device__ __forceinline__ static void agree(Shared&, int, int, uint32_t, uint32_t, Sums&) {}
  __device__ __forceinline__ static auto words(const Shared& shared, int stage, uint32_t) -> const
      uint32_t (&)[2][kTile] {
    return shared.words[stage];
  }
};

// An operand's panels of a tile, in the order of k. ROWS of each are copied: all 128, or one half.
template <class F, int ROWS>
struct PanelSource {
  static constexpr int kPanel = kPairs<F> * kPanelBytes, kHalves = kTile / ROWS;
  const bool planes_apart;  // a half's
  const char* panel;
  const uint32_t* words;

  __device__ __forceinline__ PanelSource(const Job& job, const Operand& x, int batch, int tile, int step)
      : planes_apart(kHalves == 2 && !x.along_k) {
    const int64_t index = int64_t{x.count == 1 ? 0 : batch} * x.panels + tile / kHalves;
    const int half = tile % kHalves;
    panel = job.panel<F>(x, index, step) + half * kPanelBytes / (planes_apart ? 4 : 2);
    words = x.words + index * kTile + half * ROWS;
  }

  __device__ __forceinline__ void copy_next(char* to, uint64_t* barrier) {
    constexpr int kBytes = kPanel / kHalves;
    if (planes_apart) {
      hopper::copy_bulk(to, panel, kBytes / 2, barrier);
      hopper::copy_bulk(to + kBytes / 2, panel + kPanelBytes / 2, kBytes / 2, barrier);
    } else {
      hopper::copy_bulk(to, panel, kBytes, barrier);
    }
    panel += kPanel;
  }
};

template <class F, class R>
__device__ void produce(const Job& job, char* ring, ProductShared& shared, const TileScheduler& scheduler) {
  using Shape = typename R::Shape;
  PipelineState<R::kStages> at;
  PipelineState<2> words;
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
    const WorkTile work = scheduler.work_tile(job, index);
    const TileIndex tile = tile_at(job, work.tile);
    PanelSource<F, Shape::kRows> a(job, job.a, tile.batch, tile.row, work.step0);
    PanelSource<F, Shape::kCols> b(job, job.b, tile.batch, tile.col, work.step0);
    constexpr int kWordsA = Shape::kRows * sizeof(uint32_t), kWordsB = Shape::kCols * sizeof(uint32_t);
    uint64_t* const words_full = &shared.words_full[words.stage];
    uint32_t(&to)[2][kTile] = shared.words[words.stage];
    hopper::wait(&shared.words_empty[words.stage], words.parity ^ 1);
    shared.tiles[words.stage] = tile;
    hopper::arrive_expecting(words_full, kWordsA + kWordsB);
    if (index == scheduler.first) hopper::wait_for_predecessor();  // as late as can be
    words.advance();
    for (int step = work.step0; step < work.step1; ++step) {
      char* stage = ring + at.stage * R::kStageBytes;
      hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
      hopper::arrive_expecting(&shared.full[at.stage], R::kStageBytes);
      a.copy_next(stage, &shared.full[at.stage]);
      b.copy_next(stage + R::kBytesA, &shared.full[at.stage]);
      at.advance();
      if (step > work.step0) continue;
      hopper::copy_bulk(to[0], a.words, kWordsA, words_full);
      hopper::copy_bulk(to[1], b.words, kWordsB, words_full);
    }
  }
}

// An operand's panels of ROWS in shared memory as wgmma's descriptors see them; distances in units of 16 bytes.
template <bool ALONG_MN, int ROWS>
struct PanelView {
  uint64_t first;  // the first plane, the warpgroup's rows
  static constexpr bool kAlongMn = ALONG_MN;
  static constexpr int kHalf = ALONG_MN ? 128 : 2;  // to the second 16 of k
  static constexpr int kSecondPlane = ALONG_MN ? ROWS * 4 : 4;
  static constexpr int kSecondPair = ROWS * kRowBytes / 16;
  // `block`: 64 rows of the panel.
  __device__ __forceinline__ PanelView(uint32_t address, int block)
      : first(hopper::matrix_descriptor(address + block * (ALONG_MN ? 4096 : 8192), ALONG_MN ? 4096 : 16, 1024)) {}
  __device__ __forceinline__ uint64_t plane(int stage_offset, int index, int half) const {
    return first + stage_offset + index / 2 * kSecondPair + index % 2 * kSecondPlane + half * kHalf;
  }
};

// The products of one stage of a tile's rows; a thread has N sums.
template <class F, class ViewA, class ViewB, int N>
struct StageProducts {
  using Sums = float[N];
  const ViewA& a;
  const ViewB& b;
  const int offset;  // of the stage in the ring, in units of 16 bytes

  // d += plane i of A times plane j of B; d starts anew with the first half of the stage unless `add`.
  __device__ __forceinline__ void product(Sums& d, int i, int j, int half, bool add) const {
    hopper::multiply<typename F::Element, ViewA::kAlongMn, ViewB::kAlongMn>(d, a.plane(offset, i, half),
                                                                            b.plane(offset, j, half), add);
  }

  __device__ __forceinline__ void main(Sums& d, bool add) const {
    product(d, 0, 0, 0, add);
    product(d, 0, 0, 1, true);
    hopper::commit_products();
  }

  __device__ __forceinline__ void corrections(Sums& d, bool add) const {
    product(d, 0, 1, 0, add);
    product(d, 0, 1, 1, true);
    product(d, 1, 0, 0, true);
    product(d, 1, 0, 1, true);
    if constexpr (kPairs<F> == 2) {
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
template <class F, class R>
struct KeepCorrections {
  template <class ViewA, class ViewB, int N, class OnFull>
  __device__ __forceinline__ static void run(const Job& job, ProductShared& shared, const ViewA& a, const ViewB& b,
                                             PipelineState<R::kStages>& at, int t, int steps, float (&correction)[N],
                                             const OnFull& on_full) {
    const bool leader = t % 32 == 0;
    float fresh[N], sum[N];
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = 0;
    int previous = 0;
    for (int step = 0; step < steps; ++step) {
      hopper::wait(&shared.full[at.stage], at.parity);
      on_full();
      const StageProducts<F, ViewA, ViewB, N> stage = {a, b, at.stage * (R::kStageBytes / 16)};
      hopper::fence_products();
      stage.main(fresh, (step & job.promotion) != 0);
      stage.corrections(correction, step > 0);
      hopper::wait_products<1>();  // hi * hi is done, and with it the corrections of the stage before
      hopper::fence_registers(fresh);
      if (step > 0 && leader) hopper::arrive(&shared.empty[previous]);
      if ((step & job.promotion) == job.promotion || step + 1 == steps) {
#pragma unroll
        for (int e = 0; e < N; ++e) sum[e] += fresh[e];
      }
      previous = at.stage;
      at.advance();
    }
    hopper::wait_products<0>();
    hopper::fence_registers(correction);
    if (leader) hopper::arrive(&shared.empty[previous]);
#pragma unroll
    for (int e = 0; e < N; ++e) correction[e] = fmaf(correction[e], F::kCorrection, sum[e]);
  }
};

// Until the cluster's other blocks have started.
__device__ __forceinline__ void enter_cluster(uint32_t blocks) {
  if (blocks == 1) return;
  hopper::arrive_cluster_relaxed();
  hopper::wait_cluster();
}

// Redoes what the block's tiles have marked.
template <class F, class Shape>
static __device__ __noinline__ void redo_marked(const Job& job, uint32_t last, char* ring) {
  const TileScheduler scheduler(job);
  const int t = threadIdx.x - (blockDim.x - kConsumers);
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
    const WorkTile work = scheduler.work_tile(job, index);
    if (work.part < 0 || last) redo<F, Shape>(job, work.tile, scheduler.rank, scheduler.blocks, t, ring);
  }
}

// Whether the block has the whole sums of a tile that is left over.
template <int N>
__device__ __forceinline__ bool fix_up(const Job& job, const WorkTile& work, float (&sum)[N], uint32_t& last, int t) {
  const int shared = work.tile - job.whole;
  float* const parts = job.part_sums + int64_t{shared} * job.parts * N * kConsumers;
  return sgemm::fix_up<QuadSums, kConsumers>(parts, work.part, job.parts, &job.arrived[shared], sum, last, t);
}

// `on_full` is called for each stage that is full.
template <class F, class R, class Scales, class Mainloop, bool A_ALONG_M, bool B_ALONG_N, class OnFull>
__device__ void consume(const Job& job, char* ring, float* staging, typename Scales::Shared& shared, int t,
                        const TileScheduler& scheduler, const OnFull& on_full) {
  const uint32_t rank = scheduler.rank, blocks = scheduler.blocks;
  const int warpgroup = t / 128;
  const bool leader = t % 32 == 0;
  const uint32_t base = hopper::shared_address(ring);
  using Shape = typename R::Shape;
  constexpr bool kHigh = Shape::kRows == kTile;  // the warpgroups share its rows, else its columns
  const PanelView<A_ALONG_M, Shape::kRows> a(base, kHigh ? warpgroup : 0);
  const PanelView<B_ALONG_N, Shape::kCols> b(base + R::kBytesA, kHigh ? 0 : warpgroup);
  float sum[Shape::kSums];
  PipelineState<R::kStages> at;
  PipelineState<2> words;
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
    const WorkTile work = scheduler.work_tile(job, index);
    const int steps = work.step1 - work.step0;
    const bool early = !uses_mailboxes<R>(steps, blocks);
    if (blocks > 1 && early) announce_mailboxes(shared.cluster, t, rank, blocks);
    Mainloop::run(job, shared, a, b, at, t, steps, sum, on_full);
    if (blocks > 1 && !early) announce_mailboxes(shared.cluster, t, rank, blocks);
    hopper::wait(&shared.words_full[words.stage], words.parity);
    Scales::tighten(shared, words.stage, t);
    if (blocks > 1) Scales::agree(shared, words.stage, t, rank, blocks, sum);
    if (blocks == 2) reduce_cluster<R, 2>(shared.cluster, sum, ring, t, rank);
    if (blocks == 4) reduce_cluster<R, 4>(shared.cluster, sum, ring, t, rank);
    if constexpr (Scales::kKnown)
      if (work.part >= 0 && !fix_up(job, work, sum, shared.last, t)) break;
    const int cols = Shape::kWarpCols >> blocks / 2, first = static_cast<int>(rank) * cols;
    const TileEpilogue<Shape> output(job, shared.tiles[words.stage], Scales::words(shared, words.stage, blocks), first,
                                     cols, hopper::opaque(t));
    const uint32_t mark = output.template store<Scales::kKnown>(sum, staging, work.tile);
    if (__builtin_expect(mark != 0, false)) output.leave_words(&job.words[int64_t{work.tile} * 2 * kTile]);
    __syncwarp();  // all lanes have read the words
    if (leader) {
      job.marks[(int64_t{work.tile} * 4 + rank) * 8 + t / 32] = mark;
      if (mark) atomicOr(&shared.marked, 1u);
      hopper::arrive(&shared.words_empty[words.stage]);
    }
    words.advance();
  }
  sync_consumers();
  if (__builtin_expect(shared.marked != 0, false)) redo_marked<F, Shape>(job, shared.last, ring);
}

template <class F, class Shape, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1) split_product(const __grid_constant__ Job job) {
  using R = ProductRing<F, Shape>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ ProductShared shared;
  if (threadIdx.x < 32) shared.init<R>(1, 1, hopper::cluster_size());
  __syncthreads();
  hopper::launch_dependents();
  enter_cluster(hopper::cluster_size());

  if (threadIdx.x < 128) {
    hopper::release_registers<40>();
    if (threadIdx.x == 0) produce<F, R>(job, ring, shared, TileScheduler(job));
  } else {
    hopper::acquire_registers<232>();
    hopper::wait_for_predecessor();
    float* staging = reinterpret_cast<float*>(ring + R::kBytes);
    consume<F, R, FixedScales, KeepCorrections<F, R>, A_ALONG_M, B_ALONG_N>(
        job, ring, staging, shared, threadIdx.x - 128, TileScheduler(job), [] {});
  }
}

}  // namespace sgemm::split
