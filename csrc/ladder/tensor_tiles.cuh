// Copies tiles of both operands through tensor maps to a ring of stages, with one thread.
#pragma once
#include "../gpu/fixup.cuh"
#include "../gpu/hopper.cuh"
#include "../gpu/launch_cluster.cuh"
#include "../gpu/pipeline_state.cuh"
#include "../gpu/rasterization.cuh"
#include "../gpu/stream_k.cuh"
#include "../gpu/tensor_map.cuh"
#include "../problem/pieces.h"

namespace sgemm::cuda_backend {

template <class T>
constexpr int kStageBytes = (T::BM + T::BN) * T::BK * 4;

// Full barriers wait for the producer's bytes, empty ones for the consumer warps.
template <int STAGES>
__device__ __forceinline__ void init_barriers(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES], int consumers) {
  hopper::init_ring(full, empty, consumers);
  __syncthreads();
}

// Starts the copies of A's and B's tiles at k0. `b_along_k`: rows of B's map are columns of B.
template <class T>
__device__ __forceinline__ void copy_tiles(const Problem& p, const OperandMaps& maps, const Tile& tile, int64_t k0,
                                           void* a, void* b, uint64_t* full) {
  const int row = static_cast<int>(tile.row), col = static_cast<int>(tile.col), k = static_cast<int>(k0);
  const hopper::MapPlace of_a = hopper::place_in_map(p.a.batch, maps.count_a, static_cast<int>(tile.batch));
  const hopper::MapPlace of_b = hopper::place_in_map(p.b.batch, maps.count_b, static_cast<int>(tile.batch));
  constexpr bool kAlongK = T::kReads == Reads::kMappedAlongK;
  hopper::arrive_expecting(full, kStageBytes<T>);
  hopper::copy_tensor(a, &maps.a, k, row, of_a.matrix, of_a.group, full);
  hopper::copy_tensor(b, &maps.b, kAlongK ? k : col, kAlongK ? col : k, of_b.matrix, of_b.group, full);
}

template <class T>
OperandMaps operand_maps(const Problem& p) {
  OperandMaps maps = {{}, {}, matrices(p.a, p.batch), matrices(p.b, p.batch)};
  constexpr bool kAlongK = T::kReads == Reads::kMappedAlongK;
  if (p.k == 0) return maps;  // nothing is copied
  maps.a = hopper::tensor_map(p.a, maps.count_a, T::BK, T::BM, kAlongK);
  maps.b = kAlongK ? hopper::tensor_map(transposed(p.b), maps.count_b, T::BK, T::BN, true)
                   : hopper::tensor_map(p.b, maps.count_b, T::BN, T::BK);
  return maps;
}

// Calls `run` for pieces that fit in the range of the maps' coordinates.
template <class Run>
void for_each_mapped(const Problem& p, const Run& run) {
  constexpr int64_t kExtent = int64_t{1} << 30;
  for_each_piece(p, Pieces{kExtent, kExtent, kExtent, p.batch}, run);
}

// State that persistent blocks share.
struct SharedTiles {
  StreamK deal;
  float* parts;       // (deal.parts(), BM * BN)
  uint32_t* arrived;  // number of parts of each shared tile that have arrived
};

template <class T>
StreamK deal_of(const Problem& p, int sms) {
  return stream_k(ceil_div(p.m, T::BM) * ceil_div(p.n, T::BN) * p.batch, ceil_div(p.k, T::BK), sms);
}

template <class T>
__device__ __forceinline__ Tile tile_of(const Problem& p, const WorkTile& work) {
  const int tiles_m = static_cast<int>(ceil_div(p.m, T::BM)), tiles_n = static_cast<int>(ceil_div(p.n, T::BN));
  const TileIndex tile = tile_at(work.tile, tiles_m, tiles_n, kTilesTogether);
  return {tile.batch, int64_t{tile.row} * T::BM, int64_t{tile.col} * T::BN};
}

template <class Sums>
__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < sizeof sums / sizeof(float); ++i) reinterpret_cast<float*>(&sums)[i] = 0;
}

// Returns true if the block now has the sums of all of the tile's parts.
template <class T, class Sums>
__device__ __forceinline__ bool add_parts(const SharedTiles& shared, const WorkTile& work, Sums& sums) {
  __shared__ bool last;
  constexpr int kSums = sizeof sums / sizeof(float);
  return fix_up<SingleSums, T::kThreads>(shared.parts + int64_t{work.place} * T::BM * T::BN, work.index, work.count,
                                         &shared.arrived[work.tile - shared.deal.whole],
                                         reinterpret_cast<float(&)[kSums]>(sums), last, threadIdx.x);
}

// Describes a swizzled tile with rows of 128 bytes for wgmma.
__device__ __forceinline__ uint64_t descriptor(const void* rows) {
  return hopper::matrix_descriptor(hopper::shared_address(rows), 16, 1024);
}

// Returns the float32 nearest to x that has 11 significand bits.
__device__ __forceinline__ float to_tf32(float x) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(reinterpret_cast<uint32_t&>(x)) : "f"(x));
  return x;
}

// Rounds a tile to TF32, and writes the remainder, also rounded to TF32, to `low`.
template <int THREADS, int ROWS, int COLS>
__device__ __forceinline__ void split(float (&tile)[ROWS][COLS], float (&low)[ROWS][COLS], int t) {
#pragma unroll
  for (int i = 4 * t; i < ROWS * COLS; i += 4 * THREADS) {
    float* const x = &tile[0][0] + i;
    const float4 all = load4(x), high = make_float4(to_tf32(all.x), to_tf32(all.y), to_tf32(all.z), to_tf32(all.w));
    *reinterpret_cast<float4*>(x) = high;
    *reinterpret_cast<float4*>(&low[0][0] + i) =
        make_float4(to_tf32(all.x - high.x), to_tf32(all.y - high.y), to_tf32(all.z - high.z), to_tf32(all.w - high.w));
  }
}

// Launches with one more warpgroup than the consumers, and with the ring in dynamic shared memory.
template <class T, auto KERNEL, class... Params>
void launch_with_producer(int64_t blocks, const Context& context, const Params&... params) {
  constexpr int kBytes = T::kStages * kStageBytes<T> * T::kPlanes;
  allow_shared_bytes<KERNEL>(kBytes);
  launch(KERNEL, blocks, T::kThreads + 128, kBytes, 0, false, context.stream, params...);
}

}  // namespace sgemm::cuda_backend
