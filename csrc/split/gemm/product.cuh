// The product of split operands on Hopper's tensor cores, with float32 accuracy.
//
// Idea:   16-bit wgmma adds with 25 bits and truncates, so long sums drift. Here hi * hi stays in the tensor cores for
//         32 of k only, or for 64 where additions would cost time. Each hi * hi goes to a fresh accumulator, which is
//         added to a float32 one by ordinary additions while the tensor cores work on the corrections. The corrections
//         are 2^11 times smaller (2^8 in bfloat16) and have an accumulator of their own.
// Block:  a persistent block of three warpgroups works on 128 x 128 tiles. One thread of the first warpgroup keeps a
//         ring of stages filled with bulk copies. Each of the other two owns 64 x 128 of the tile: 192 accumulators per
//         thread. Tiles of half the columns are for small problems, and for problems that have no more columns.
// Bound:  the tensor cores (256 cycles for a 16-bit product of a stage) and the chip's power.
// Small problems: the blocks of a cluster share a tile, each with a part of k; each finishes a part of the columns.
// Leftover tiles, which remain when all blocks have had equally many, are shared in the same way, through device
// memory.
#pragma once
#include "../../gpu/fixup.cuh"
#include "../epilogue/epilogue.cuh"
#include "../plan/tile_shape.cuh"
#include "../redo/redo.cuh"
#include "mainloop.cuh"
#include "producer.cuh"

namespace sgemm::split {

constexpr int kProductThreads = 384;

// Adds up the parts of a leftover tile. Returns true if the block is the last to arrive, and so has the whole sums.
template <int N>
__device__ __forceinline__ bool fix_up(const Job& job, const WorkTile& work, float (&sum)[N], uint32_t& last, int t) {
  const int left_over = work.tile - job.whole;
  float* const parts = job.part_sums + int64_t{left_over} * job.parts * N * kConsumers;
  return sgemm::fix_up<QuadSums, kConsumers>(parts, work.index, job.parts, &job.arrived[left_over], sum, last, t);
}

// Tells consume() where the scales of a tile's sums are. Here they are complete with shared.scales_full. OnTheFlyScales
// (onthefly.cuh) has those of A's rows from the consumers.
//
//   kColMajorD      plain tiles are stored from the accumulators also where D's columns are contiguous
//   kManyParts      a block may have parts of several tiles; otherwise its last work tile alone may be a part
//   publish()       makes scales that the main loop has found visible to all consumers; D may be written from here on
//   fix_up()        adds up the parts of a leftover tile
struct FixedScales {
  using Shared = ProductShared;
  static constexpr bool kColMajorD = false, kManyParts = false;
  __device__ __forceinline__ static void publish() {}
  template <class Sums>
  __device__ __forceinline__ static bool fix_up(const Job& job, Shared& shared, const WorkTile& work, Sums& sum,
                                                int t) {
    return split::fix_up(job, work, sum, shared.last, t);
  }
};

// Computes the refused elements of the block's tiles again. `finished`: of the block's parts of tiles, those whose tile
// this block has finished; bit i for the i-th work tile. All bits are equal if the block has only one part.
template <class Shape>
static __device__ __noinline__ void redo_refused(const Job& job, uint32_t finished, char* ring) {
  const TileScheduler scheduler(job);
  const int t = threadIdx.x - (blockDim.x - kConsumers);
  uint32_t bit = 1;
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride, bit = bit << 1 | bit >> 31) {
    const WorkTile work = scheduler.work_tile(job, index);
    if (work.count == 1 || finished & bit) redo<Shape>(job, work.tile, scheduler.rank, t, ring);
  }
}

// Runs a consumer thread through the main loop, the guard and the store of each of the block's tiles. The main loop
// leaves a tile's sums, and in `others` sums that also bound |A||B| from below (kOfMagnitudes, guard.cuh).
template <class R, class Scales, class Mainloop, class ViewA, class ViewB, class Scheduler>
__device__ __forceinline__ void consume(const Job& job, char* ring, float* staging, typename Scales::Shared& shared,
                                        int t, const Scheduler& scheduler) {
  const uint32_t rank = scheduler.rank, blocks = scheduler.blocks;
  const int warpgroup = t / 128;
  const bool leader = t % 32 == 0;
  const uint32_t base = hopper::shared_address(ring);
  using Shape = typename R::Shape;
  const ViewA a(base, warpgroup);
  const ViewB b(base + R::kBytesA, 0);
  uint32_t finished = 0, bit = 1;  // kManyParts: see redo_refused()
  float sum[Shape::kSums], others[Shape::kSums];
  PipelineState<R::kStages> at;
  PipelineState<2> buffer;
  for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
    const WorkTile work = scheduler.work_tile(job, index);
    const bool announces_first = !uses_mailbox<R>(work.steps);
    if (blocks > 1 && announces_first) announce_mailbox(shared.cluster, t, rank);
    const TileSteps all = {work.steps, steps_ahead<R>(scheduler, index, work.steps), buffer.stage};
    Mainloop::run(job, shared, ring, a, b, at, t, all, sum, others);
    if (blocks > 1 && !announces_first) announce_mailbox(shared.cluster, t, rank);
    hopper::wait(&shared.scales_full[buffer.stage], buffer.parity);
    Scales::publish();
    const int cols = Shape::kCols >> blocks / 2;
    const TileEpilogue<Shape> output(job, shared.tiles[buffer.stage], shared.row_scales[buffer.stage],
                                     static_cast<int>(rank) * cols, cols, hopper::opaque(t));
    // The code that most tiles need follows the main loop: while instructions are in no cache yet, each jump takes a
    // good part of a microsecond.
    uint32_t flags = 0;
    bool whole = true;  // the block has the tile's whole sums
    const bool in_parts = work.tile >= job.whole, shares = blocks > 1 || in_parts;
    const auto stores_plain = [&] { return output.template stores_plain<Scales::kColMajorD>(); };
    if (__builtin_expect(!shares && stores_plain(), true)) {
      output.template store_plain<Scales::kColMajorD>(sum);
    } else {
      bool plain = !in_parts && stores_plain();  // tested while the other blocks still multiply
      // A block's own sums certify elements if the block is always the same: of a tile shared through device memory,
      // any block may be the last. With batch_invariant, the sum that certifies an element must not depend on other
      // elements of its band.
      Certified<Shape::kSums> early;
      const bool tests_early = !job.batch_invariant && !in_parts;
      if (__builtin_expect(!plain && tests_early && !output.is_plain(), false)) {
        early = output.certified(others, kOfMagnitudes);
        if (shares) early = early | output.certified(sum, 1);
      }
      if (blocks > 1) reduce_cluster<R>(shared.cluster, sum, ring, t, rank);
      if (in_parts) whole = Scales::fix_up(job, shared, work, sum, t);
      if (!whole && !Scales::kManyParts) break;
      if (whole && in_parts) plain = stores_plain();
      if (whole && plain) {
        output.template store_plain<Scales::kColMajorD>(sum);
      } else if (whole) {
        flags = output.store(sum, early, staging, work.tile);
        if (flags) output.keep_scales(&job.row_scales[int64_t{work.tile} * 2 * kTile]);
      }
    }
    __syncwarp();  // all lanes have read the row scales and thresholds
    if (leader) {
      if (!Scales::kManyParts || whole) job.refused[(int64_t{work.tile} * kTileCluster + rank) * 8 + t / 32] = flags;
      if (flags) atomicOr(&shared.refused, 1u);
      hopper::arrive(&shared.scales_empty[buffer.stage]);
    }
    buffer.advance();
    if (Scales::kManyParts) {
      if (whole) finished |= bit;
      bit <<= 1;
    }
  }
  sync_consumers();
  if (__builtin_expect(shared.refused != 0, false))
    redo_refused<Shape>(job, Scales::kManyParts ? finished : shared.last ? ~0u : 0, ring);
}

template <class F, class Shape, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1) split_product(const __grid_constant__ Job job) {
  using R = ProductRing<F, Shape>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ ProductShared shared;
  if (threadIdx.x < 32) shared.init<R>(1, 1, hopper::cluster_size());
  __syncthreads();
  hopper::enter_cluster(hopper::cluster_size());

  if (threadIdx.x < 128) {
    hopper::release_registers<40>();
    if (threadIdx.x == 0) produce<F, R>(job, ring, shared, TileScheduler(job));
  } else {
    hopper::acquire_registers<232>();
    hopper::wait_for_predecessor();
    hopper::launch_dependents();
    float* staging = reinterpret_cast<float*>(ring + R::kBytes);
    consume<R, FixedScales, KeepCorrections<F, R>, PlaneView<A_ALONG_M, R::kRows>, PlaneView<B_ALONG_N, R::kCols>>(
        job, ring, staging, shared, threadIdx.x - 128, TileScheduler(job));
  }
}

}  // namespace sgemm::split
