// At most 64 queries and keys: all blocks of a head stay in shared memory, so that no planes go through the workspace.
//
// A thread block takes two heads, one for each warpgroup. It splits their operands itself, then computes dK and dV,
// then dQ. While it multiplies, the operands of its next heads come to the L2 cache.
//
// Bound: latency of one tile's products and of the splitting, which nothing overlaps.
#pragma once
#include "../../gpu/ptx/prefetch.cuh"
#include "keys.cuh"
#include "prepare.cuh"
#include "queries.cuh"

namespace sgemm::attention::backward {

struct ResidentMemory {
  alignas(16) QueryBlock queries[2];  // of each warpgroup's head
  alignas(16) KeyBlock keys[2];
  int head[2], again[2];
};

// Offers a warpgroup Q, dO, K and V of its head as Ring does. Slots hold Q and dO for a tile of keys, and V and K for a
// tile of queries.
template <class S>
class Resident {
  ResidentMemory& shared_;
  const uint32_t memory_;  // address
  const int warpgroup_;
  int taken_ = 0;  // number of slots
  bool of_keys_ = true;

 public:
  using Shape = S;
  using Memory = ResidentMemory;
  static constexpr int kBytes = 8 * S::kBlock;

  __device__ __forceinline__ Resident(Memory& shared, char* memory, int warpgroup)
      : shared_(shared), memory_(hopper::shared_address(memory)), warpgroup_(warpgroup) {}

  __device__ __forceinline__ static uint32_t warpgroup_of(uint32_t thread) { return thread / 128; }

  // Starts a tile of keys, or of queries.
  __device__ __forceinline__ void begin(bool of_keys) {
    of_keys_ = of_keys;
    taken_ = 0;
  }
  __device__ __forceinline__ int index() const { return *static_cast<const volatile int*>(&shared_.head[warpgroup_]); }
  __device__ __forceinline__ volatile int& again() const { return shared_.again[warpgroup_]; }
  __device__ __forceinline__ int half() const { return 0; }

  __device__ __forceinline__ void take() { ++taken_; }
  __device__ __forceinline__ int slot(int ago) const { return taken_ - ago; }
  __device__ __forceinline__ void release(int) const {}
  __device__ __forceinline__ AlongDepth along_depth(int slot) const { return AlongDepth(address_of_slot(slot)); }
  __device__ __forceinline__ AcrossDepth across_depth(int slot) const { return AcrossDepth(address_of_slot(slot)); }
  __device__ __forceinline__ const QueryBlock& queries(int) const { return shared_.queries[warpgroup_]; }
  __device__ __forceinline__ const KeyBlock& keys(int) const { return shared_.keys[warpgroup_]; }

  __device__ __forceinline__ AlongDepth own(int which) const {
    return AlongDepth(address(of_keys_ ? 2 + which : which));
  }
  __device__ __forceinline__ void release_own() const {}
  __device__ __forceinline__ const KeyBlock& own_keys() const { return shared_.keys[warpgroup_]; }
  __device__ __forceinline__ const float* own_norms(const Job&, const Tile<true>&) const {
    return shared_.keys[warpgroup_].row_norm;
  }
  __device__ __forceinline__ const QueryBlock& own_queries(const Job&, const Tile<false>&) const {
    return shared_.queries[warpgroup_];
  }
  __device__ __forceinline__ const QueryBlock* queries_of_head(const Job&, int) const {
    return shared_.queries + warpgroup_;
  }

 private:
  // `block`: 0 to 3 is Q, dO, K, V.
  __device__ __forceinline__ uint32_t address(uint32_t block) const {
    return memory_ + (warpgroup_of(hopper::opaque(threadIdx.x)) * 4 + block) * S::kBlock;
  }
  __device__ __forceinline__ uint32_t address_of_slot(int slot) const { return address(of_keys_ ? slot : 3 - slot); }
};

// Asks for the rows of a matrix, so that they come to the L2 cache.
__device__ __forceinline__ void prefetch_rows(const ConstMatrix& x) {
  constexpr int kLine = 128 / sizeof(float), kLines = 2;  // of a row
  const int row = threadIdx.x / kLines, column = threadIdx.x % kLines * kLine;
  if (row < x.rows && column < x.cols) hopper::prefetch_line(x.at(row, column));
}

template <class S, bool MASKED>
__global__ void __launch_bounds__(kConsumers, 1) differentiate_resident(const __grid_constant__ Job job) {
  extern __shared__ __align__(1024) char memory[];
  ResidentMemory& shared = *reinterpret_cast<ResidentMemory*>(memory + Resident<S>::kBytes);
  const Preparation<S> preparation(job);
  wait_for_predecessor();
  launch_dependents();
#pragma unroll 1
  for (int tile = blockIdx.x; tile < job.all_tiles; tile += gridDim.x) {
    // If the number of heads is odd, both warpgroups compute the last one, and store the same.
    const int heads[2] = {2 * tile, min(2 * tile + 1, job.heads - 1)};
    const typename Preparation<S>::Queries q[2] = {preparation.load_queries(heads[0], 0),
                                                   preparation.load_queries(heads[1], 0)};
    const typename Preparation<S>::Keys k[2] = {preparation.load_keys(heads[0], 0), preparation.load_keys(heads[1], 0)};
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      char* const to = memory + 4 * w * S::kBlock;
      preparation.store_queries(q[w], heads[w], 0, to, to + S::kBlock, shared.queries[w]);
      preparation.store_keys(k[w], heads[w], 0, to + 2 * S::kBlock, to + 3 * S::kBlock, shared.keys[w]);
      if (threadIdx.x == 0) shared.head[w] = heads[w];
    }
    for (int w = 0; w < 2; ++w) {
      const int next = 2 * (tile + static_cast<int>(gridDim.x)) + w;
      const Gradients& g = job.g;
      if (next < job.heads)
        for (const ConstMatrix* x : {&g.p.q, &g.grad, &g.out, &g.p.k, &g.p.v}) prefetch_rows(x->matrix(next));
    }
    hopper::fence_async_proxy();
    __syncthreads();
    using Blocks = Resident<S>;
    KeyGradients<Blocks, MASKED> keys{Consumer<Blocks>(job, memory, shared)};
    if (job.g.k.data) keys.compute();
    QueryGradients<Blocks, MASKED> queries(keys);
    if (job.g.q.data || job.g.mask) queries.compute(shared.head[threadIdx.x / 128]);
    queries.finish();
    __syncthreads();
  }
}

}  // namespace sgemm::attention::backward
