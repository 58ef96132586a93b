// D = alpha A B + beta C for operands of bfloat16, by one product on the tensor cores.
//
// Idea:   the elements themselves are what a convert kernel would write as hi, so there is no convert kernel, no scale
//         and no guard. Tensor maps bring panels from memory, along k or across, to shared memory in wgmma's order. A
//         warpgroup has two blocks of 64 x 128 of a tile of 256 x 128, and adds up one while the tensor cores work for
//         the other warpgroup. Products of 16 bits are exact; sums leave the tensor cores each 32 or 64 of k, as those
//         of split products do. Idle warps look for subnormal elements, which the tensor cores align too coarsely
//         (subnormals.cuh).
// Bound:  the L2 cache, at 48 bytes per cycle and SM; the tensor cores where power allows it.
// Reads:  bfloat16 elements that a tensor map can describe. Hopper only.
#pragma once
#include "../../gpu/cluster_reduction.cuh"
#include "../../gpu/fixup.cuh"
#include "../../gpu/pipeline_state.cuh"
#include "../../gpu/stream_k.cuh"
#include "../../gpu/tensor_map.cuh"
#include "epilogue.cuh"
#include "subnormals.cuh"

namespace sgemm::split {

// Copies a panel of ROWS rows from `row` and `k` on: by one copy along k, or by one copy for each block across k.
template <bool ACROSS, int ROWS>
__device__ __forceinline__ void copy_panel(char* to, const CUtensorMap& map, int row, int k,
                                           const hopper::MapPlace& place, uint64_t* barrier) {
  if constexpr (ACROSS) {
#pragma unroll
    for (int block = 0; block < ROWS / 64; ++block)
      hopper::copy_tensor(to + block * kBlockBytes, &map, row + block * 64, k, place.matrix, place.group, barrier);
  } else {
    hopper::copy_tensor(to, &map, k, row, place.matrix, place.group, barrier);
  }
}

// Enumerates a block's tiles and parts of tiles. If CLUSTERS, the two blocks of a cluster may share a tile: each has a
// part of its k.
template <bool CLUSTERS>
class Native16Scheduler {
 public:
  __device__ __forceinline__ explicit Native16Scheduler(const StreamK& deal)
      : of_block_(deal, blockIdx.x >> blocks() / 2) {}

  __device__ __forceinline__ static uint32_t rank() { return CLUSTERS ? hopper::cluster_rank() : 0; }
  __device__ __forceinline__ static uint32_t blocks() { return CLUSTERS ? hopper::cluster_size() : 1; }

  __device__ __forceinline__ bool next(WorkTile& work) {
    if (!of_block_.next(work)) return false;
    if (blocks() > 1) {
      work.first = rank() * work.steps / 2;
      work.steps = (rank() + 1) * work.steps / 2 - work.first;
    }
    return true;
  }

 private:
  StreamKScheduler of_block_;
};

// Issues a warpgroup's products of panels in the ring.
template <class Ring, bool A_ALONG_M, bool B_ALONG_N>
struct Native16Products {
  PanelView<A_ALONG_M, Native16::BK> a;
  PanelView<B_ALONG_N, Native16::BK> b;

  // Computes d, the product of 64 rows over `count` times 16 of k, from the `first` 16 on.
  __device__ __forceinline__ void issue(float (&d)[64], int stage, int block, int first, int count) const {
    const int at = stage * (Ring::kStageBytes / 16);
    hopper::fence_products();
#pragma unroll
    for (int q = first; q < first + count; ++q)
      hopper::multiply<__nv_bfloat16, A_ALONG_M, B_ALONG_N>(d, a.at(at + block * a.kBlock, q), b.at(at, q), q > first);
    hopper::commit_products();
  }
};

// Adds a tile's products, WINDOW of k at a time. A second window in flight would take the registers of a block's sums.
template <int WINDOW, class Ring, class Products, int BLOCKS>
__device__ __forceinline__ void add_in_turns(const Products& products, PipelineState<Ring::kStages>& at, uint64_t* full,
                                             uint64_t* empty, int steps, const Turns& turns, int t,
                                             Native16Sums<BLOCKS>& sum, float (&window)[64]) {
  constexpr int kCount = WINDOW / 16;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, at.advance()) {
    hopper::wait(&full[at.stage], at.parity);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int first = 0; first < Native16::BK / 16; first += kCount) {
        turns.begin();
        products.issue(window, at.stage, block, first, kCount);
        turns.end();
        hopper::wait_products<0>();
        hopper::fence_registers(window);
#pragma unroll
        for (int e = 0; e < 64; ++e) sum[block][e] += window[e];
      }
    if (t % 32 == 0) hopper::arrive(&empty[at.stage]);
  }
}

// Fills the ring, by one thread.
template <class Ring, bool A_ALONG_M, bool B_ALONG_N, class Scheduler>
__device__ __forceinline__ void copy_panels(const Native16Job& job, const OperandMaps& maps, Scheduler scheduler,
                                            char* ring, uint64_t* full, uint64_t* empty) {
  PipelineState<Ring::kStages> at;
  WorkTile work;
  while (scheduler.next(work)) {
    const TileIndex tile = job.tile_at(work.tile);
    const hopper::MapPlace place_a = hopper::place_in_map(job.p.a.batch, maps.count_a, tile.batch);
    const hopper::MapPlace place_b = hopper::place_in_map(job.p.b.batch, maps.count_b, tile.batch);
    for (int step = work.first; step < work.first + work.steps; ++step, at.advance()) {
      char* const stage = ring + at.stage * Ring::kStageBytes;
      hopper::wait(&empty[at.stage], at.parity ^ 1);
      hopper::arrive_expecting(&full[at.stage], Ring::kStageBytes);
      copy_panel<A_ALONG_M, Ring::kRows>(stage, maps.a, tile.row * Ring::kRows, step * Native16::BK, place_a,
                                         &full[at.stage]);
      copy_panel<B_ALONG_N, Ring::kCols>(stage + Ring::kBytesA, maps.b, tile.col * Ring::kCols, step * Native16::BK,
                                         place_b, &full[at.stage]);
    }
  }
}

constexpr int kSearched = 4;  // the named barrier at which searchers signal to consumers that they have read all stages

// A tile's part of each stage's panel, bytes. The tiles that share the panel divide it, and the `searcher`-th thread
// has every kSearchers-th 16 bytes of a part.
struct SearchedPart {
  int first, end;
  __device__ __forceinline__ SearchedPart(int bytes, int tile, int tiles, int searcher) {
    const int each = (bytes / 16 + tiles - 1) / tiles * 16;
    first = tile * each + searcher * 16;
    end = min((tile + 1) * each, bytes);
  }
  __device__ __forceinline__ uint32_t subnormals(const char* panel) const {
    uint32_t found = 0;
#pragma unroll 4
    for (int i = first; i < end; i += kSearchers * 16)
      found |= split::subnormals(*reinterpret_cast<const uint4*>(panel + i));
    return found;
  }
};

// Looks for subnormal elements in the block's panels. Tiles of a row share A's panels, and tiles of a column share B's.
template <class Ring, class Scheduler>
__device__ __forceinline__ void search_panels(const Native16Job& job, Scheduler scheduler, const char* ring,
                                              uint64_t* full, uint64_t* empty, int searcher, uint32_t blocks) {
  uint32_t found = 0;
  PipelineState<Ring::kStages> at;
  WorkTile work;
  while (scheduler.next(work)) {
    const TileIndex tile = job.tile_at(work.tile);
    const SearchedPart a(Ring::kBytesA, tile.col, job.tiles_n, searcher);
    const SearchedPart b(Ring::kBytesB, tile.row, job.tiles_m, searcher);
    for (int step = 0; step < work.steps; ++step, at.advance()) {
      const char* const stage = ring + at.stage * Ring::kStageBytes;
      hopper::wait_suspended(&full[at.stage], at.parity);
      if (!job.flags) found |= a.subnormals(stage) | b.subnormals(stage + Ring::kBytesA);
      __syncwarp();
      if (searcher % 32 == 0) hopper::arrive(&empty[at.stage]);
    }
    if (blocks > 1 && uses_mailbox<Ring>(work.steps)) hopper::arrive_some(kSearched, Native16::kThreads + kSearchers);
  }
  found = __reduce_or_sync(~0u, found);
  if (!job.flags && searcher % 32 == 0) job.found[(blockIdx.x * kSearchers + searcher) / 32] = found;
}

template <int BLOCKS, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kNative16Threads, 1)
    native16(const __grid_constant__ Native16Job job, const __grid_constant__ OperandMaps maps) {
  using Ring = Native16Ring<BLOCKS>;
  constexpr bool kClusters = BLOCKS == 1;  // clusters may share a tile
  extern __shared__ __align__(1024) char ring[];
  __shared__ uint64_t full[Ring::kStages], empty[Ring::kStages];
  __shared__ bool last;
  __shared__ ClusterBarriers cluster;
  using Scheduler = Native16Scheduler<kClusters>;
  const uint32_t rank = Scheduler::rank(), blocks = Scheduler::blocks();
  hopper::init_ring(full, empty, Native16::kThreads + kSearchers);
  if (threadIdx.x / 32 == 1 && blocks > 1) {
    cluster.init(threadIdx.x % 32, 64);
    hopper::fence_barrier_init();
  }
  __syncthreads();
  hopper::enter_cluster(blocks);
  hopper::wait_for_predecessor();
  hopper::launch_dependents();

  // Leaves all of D to the kernel after the product (subnormals.cuh).
  if (job.flags && found_some(job.found, job.flags)) return;

  if (threadIdx.x >= Native16::kThreads) {
    hopper::release_registers<40>();
    const int searcher = static_cast<int>(threadIdx.x) - Native16::kThreads - 32;
    if (searcher >= 0)
      search_panels<Ring>(job, Scheduler(job.deal), ring, full, empty, searcher, blocks);
    else if (searcher == -32)
      copy_panels<Ring, A_ALONG_M, B_ALONG_N>(job, maps, Scheduler(job.deal), ring, full, empty);
    return;
  }
  hopper::acquire_registers<232>();
  const int t = threadIdx.x;
  const Native16Products<Ring, A_ALONG_M, B_ALONG_N> products = {
      PanelView<A_ALONG_M, Native16::BK>(hopper::shared_address(ring) + t / 128 * BLOCKS * kBlockBytes),
      PanelView<B_ALONG_N, Native16::BK>(hopper::shared_address(ring) + Ring::kBytesA)};
  const Turns turns(t / 128);
  float* const staging = reinterpret_cast<float*>(ring + Ring::kBytes) + t / 32 * kStagedFloats;
  Native16Sums<BLOCKS> sum;
  PipelineState<Ring::kStages> at;
  WorkTile work;
  Scheduler scheduler(job.deal);
  while (scheduler.next(work)) {
    const bool announces_first = !uses_mailbox<Ring>(work.steps);
    if (blocks > 1 && announces_first) announce_mailbox(cluster, t, rank);
    float window[64];
#pragma unroll
    for (int e = 0; e < 64; ++e) window[e] = 0;
#pragma unroll
    for (int e = 0; e < 64 * BLOCKS; ++e) sum[e / 64][e % 64] = 0;
    if (job.long_windows)
      add_in_turns<kLongWindow, Ring>(products, at, full, empty, work.steps, turns, t, sum, window);
    else
      add_in_turns<kWindow, Ring>(products, at, full, empty, work.steps, turns, t, sum, window);
    if (blocks > 1 && !announces_first) {
      hopper::sync_some(kSearched, Native16::kThreads + kSearchers);
      announce_mailbox(cluster, t, rank);
    }
    if constexpr (kClusters) {
      if (blocks > 1) reduce_cluster<Ring>(cluster, sum[0], ring, t, rank);
    }
    if (work.count > 1) {
      constexpr int kSums = 64 * BLOCKS;
      float* const parts = job.parts + int64_t{work.place} * kSums * Native16::kThreads;
      if (!fix_up<QuadSums, Native16::kThreads>(parts, work.index, work.count, &job.arrived[work.tile - job.deal.whole],
                                                reinterpret_cast<float(&)[kSums]>(sum), last, t))
        continue;
    }
    store_tile(job, work.tile, sum, t, rank, blocks, staging);
    __syncwarp();  // reconverges lanes for wgmma: those without rows or columns may have diverged
  }
  turns.finish();
}

}  // namespace sgemm::split
