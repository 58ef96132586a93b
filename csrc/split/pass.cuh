// The splitting pass: float32 operands to pairs of 16-bit planes, both operands in one launch, each element read once.
//
// Idea:   a row that lies along k is held in the registers of one block's threads, a strip of 32 columns in those of a
//         cluster, while its largest magnitude is found; then it is scaled and split. The planes come out as the product
//         wants them in shared memory: panels of 128 rows x 32 of k, already swizzled, K-major or MN-major as the source
//         runs, so that the product loads a panel with one plain bulk copy and nothing is ever transposed.
// Bound:  memory: 4 bytes an element in, 4 (8 for three planes) out.
// Panel:  kPanelBytes, for each pair of planes. K-major: row r holds 128 bytes, 32 of k of the first plane, then of the
//         second; its 16-byte chunk c lies at chunk c ^ (r % 8). MN-major: for each plane two blocks of 64 rows, in which
//         each of k holds 64 rows in 128 bytes, chunks swizzled by k % 8.
#pragma once
#include "format.cuh"
#include "job.h"

namespace sgemm::split {

constexpr int kHeld = 8;     // float4s in a thread's registers
constexpr int kMaxStrip = 32;  // columns
constexpr int kMaxCluster = 8;

// Quads of neighbours, read one after the other: (mn, q), then `apart` along k each time. Zeros outside.
struct QuadReader {
  const float* from;
  int64_t apart, neighbour;  // distances in memory
  int valid, k_left, k_apart;  // elements inside along mn (or rows, 0 or 4, if the quads lie along k); of k

  __device__ __forceinline__ QuadReader(const Operand& x, int64_t batch, int64_t mn, int q, int k_apart, int64_t depth)
      : from(x.data + batch * x.batch_stride + mn * x.stride + q * x.k_stride), apart(k_apart * x.k_stride),
        neighbour(x.along_k ? x.k_stride : x.stride), k_left(static_cast<int>(depth) - q), k_apart(k_apart) {
    const int64_t left = x.size - mn;
    valid = left <= 0 ? 0 : x.along_k || left > 4 ? 4 : static_cast<int>(left);
  }

  __device__ __forceinline__ void read_vectors(float4 (&v)[kHeld]) const {
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
      v[j] = valid && j * k_apart < k_left ? __ldg(reinterpret_cast<const float4*>(from + j * apart))
                                           : make_float4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void read_scalars(float4 (&v)[kHeld], bool along_k) const {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const float* at = from + j * apart;
      const int left = k_left - j * k_apart;
      const int count = along_k ? (valid ? left : 0) : (left > 0 ? valid : 0);
      v[j].x = count > 0 ? __ldg(at) : 0;
      v[j].y = count > 1 ? __ldg(at + neighbour) : 0;
      v[j].z = count > 2 ? __ldg(at + 2 * neighbour) : 0;
      v[j].w = count > 3 ? __ldg(at + 3 * neighbour) : 0;
    }
  }

  __device__ __forceinline__ void read(float4 (&v)[kHeld], const Operand& x) const {
    if (x.vector)
      read_vectors(v);
    else
      read_scalars(v, x.along_k);
  }
};

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & kMagnitude; }

// Bits are compared instead of floats: a NaN is larger than everything.
__device__ __forceinline__ uint32_t largest_magnitude(const float4& v) {
  return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
}

template <class F>
__device__ __forceinline__ uint32_t is_small(float scaled) {
  return scaled != 0 && fabsf(scaled) < F::kSmall;
}

// The four scaled elements' planes as 8 bytes each: the first plane of pair i at to + i * kPanelBytes, the second
// `second` bytes on or, where a swizzle has flipped that bit, back.
template <class F>
__device__ __forceinline__ void store_planes(char* first, char* second, const float4& v) {
  constexpr int kPlanes = F::kShape.planes == 1 ? 2 : 3;
  uint32_t xy[kPlanes], zw[kPlanes];
  F::split(v.x, v.y, xy);
  F::split(v.z, v.w, zw);
#pragma unroll
  for (int i = 0; i < kPlanes; ++i)
    *reinterpret_cast<uint2*>((i % 2 ? second : first) + i / 2 * kPanelBytes) = make_uint2(xy[i], zw[i]);
}

// Rows along k: `threads` neighbours hold one, 4 * kHeld elements each at most.
template <class F, int THREADS>
__device__ void split_rows(const Job& job, const Operand& x, int64_t block, int threads, uint32_t* scratch) {
  const int t = threadIdx.x & (threads - 1), rows = THREADS / threads;
  const int64_t first = block * rows;  // counts all matrices' rows, of which each has whole tiles
  const int64_t tile = first / kTile;
  const int64_t batch = tile / x.tiles;
  const int r = static_cast<int>(first % kTile) + threadIdx.x / threads;
  const int64_t mn = tile % x.tiles * kTile + r;

  float4 v[kHeld];
  uint32_t largest = 0;
  QuadReader(x, batch, mn, 4 * t, 4 * threads, job.depth(batch)).read(v, x);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) largest = max(largest, largest_magnitude(v[j]));
  const int warps = threads / 32;  // of a row; 0 if a warp holds several
  for (int o = min(threads, 32) / 2; o; o /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, o));
  if (warps > 1) {
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < warps; ++i) largest = max(largest, scratch[threadIdx.x / threads * warps + i]);
  }
  const int exponent = row_exponent<F>(largest);
  const float factor = power_of_two(-exponent);

  char* panel = x.planes + tile * job.steps * F::kShape.planes * kPanelBytes + r * 128;
  uint32_t small = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int quad = t + j * threads, step = quad / 8, chunk = quad / 2 % 4;
    if (step >= job.steps) break;
    const float4 s = make_float4(v[j].x * factor, v[j].y * factor, v[j].z * factor, v[j].w * factor);
    small += is_small<F>(s.x) + is_small<F>(s.y) + is_small<F>(s.z) + is_small<F>(s.w);
    char* to = panel + static_cast<int64_t>(step) * F::kShape.planes * kPanelBytes + quad % 2 * 8;
    store_planes<F>(to + ((chunk ^ r % 8) << 4), to + (((chunk + 4) ^ r % 8) << 4), s);
  }
  if (__syncthreads_or(small)) {
    for (int o = min(threads, 32) / 2; o; o /= 2) small += __shfl_xor_sync(~0u, small, o);
    if (warps > 1) {
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = small;
      __syncthreads();
      small = 0;
      for (int i = 0; i < warps; ++i) small += scratch[threadIdx.x / threads * warps + i];
    }
  }
  if (t == 0) x.words[tile * kTile + r] = row_word<F>(largest, exponent, small);
}

// What a strip's cluster shares.
struct StripScratch {
  uint32_t of_warp[32][kMaxStrip];
  uint32_t of_block[kMaxCluster][kMaxStrip];
  uint32_t small[kMaxStrip];
};

// A strip of STRIP columns (rows of the operand, whose neighbours lie side by side): each block of the cluster holds as
// much of k as its threads' registers do.
template <class F, int THREADS, int STRIP>
__device__ void split_strip(const Job& job, const Operand& x, int64_t strip, StripScratch& scratch) {
  constexpr int kQuads = STRIP / 4, kApart = THREADS / kQuads;  // of k, between two quads of a thread
  const uint32_t rank = hopper::cluster_rank(), blocks = hopper::cluster_size();
  const auto sync = [blocks] { blocks > 1 ? hopper::sync_cluster() : __syncthreads(); };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int quad = threadIdx.x % kQuads;
  const int64_t tile = strip / (kTile / STRIP);
  const int64_t batch = tile / x.tiles;
  const int r = static_cast<int>(strip % (kTile / STRIP)) * STRIP + quad * 4;  // in the tile
  const int64_t mn = tile % x.tiles * kTile + r;
  const int q0 = static_cast<int>(rank) * kHeld * kApart + threadIdx.x / kQuads;

  if (threadIdx.x < STRIP) scratch.small[threadIdx.x] = 0;
  float4 v[kHeld];
  uint32_t largest[4] = {};
  QuadReader(x, batch, mn, q0, kApart, job.depth(batch)).read(v, x);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    largest[0] = max(largest[0], magnitude(v[j].x));
    largest[1] = max(largest[1], magnitude(v[j].y));
    largest[2] = max(largest[2], magnitude(v[j].z));
    largest[3] = max(largest[3], magnitude(v[j].w));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int o = 16; o >= kQuads; o /= 2) largest[i] = max(largest[i], __shfl_xor_sync(~0u, largest[i], o));
    if (lane < kQuads) scratch.of_warp[warp][quad * 4 + i] = largest[i];
  }
  sync();  // also: every block of the cluster has started
  for (uint32_t i = threadIdx.x; i < STRIP * blocks; i += THREADS) {
    const uint32_t column = i % STRIP, to = i / STRIP;
    uint32_t of_block = 0;
    for (int w = 0; w < THREADS / 32; ++w) of_block = max(of_block, scratch.of_warp[w][column]);
    hopper::store_in_cluster(hopper::map_to_rank(hopper::shared_address(&scratch.of_block[rank][column]), to), of_block);
  }
  sync();
  int exponent[4];
  float factor[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest[i] = 0;
    for (uint32_t b = 0; b < blocks; ++b) largest[i] = max(largest[i], scratch.of_block[b][quad * 4 + i]);
    exponent[i] = row_exponent<F>(largest[i]);
    factor[i] = power_of_two(-exponent[i]);
  }

  char* panel = x.planes + tile * job.steps * F::kShape.planes * kPanelBytes + r / 64 * 4096 + r / 4 % 2 * 8;
  const int chunk = r % 64 / 8;
  uint32_t small[4] = {};
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int q = q0 + j * kApart;
    if (q >= job.steps * kStep) break;
    const float4 s = make_float4(v[j].x * factor[0], v[j].y * factor[1], v[j].z * factor[2], v[j].w * factor[3]);
    small[0] += is_small<F>(s.x);
    small[1] += is_small<F>(s.y);
    small[2] += is_small<F>(s.z);
    small[3] += is_small<F>(s.w);
    char* to = panel + static_cast<int64_t>(q / kStep) * F::kShape.planes * kPanelBytes + q % kStep * 128 +
               ((chunk ^ q % 8) << 4);
    store_planes<F>(to, to + kPanelBytes / 2, s);
  }
  if (__syncthreads_or(small[0] + small[1] + small[2] + small[3])) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (int o = 16; o >= kQuads; o /= 2) small[i] += __shfl_xor_sync(~0u, small[i], o);
      const uint32_t sum = hopper::map_to_rank(hopper::shared_address(&scratch.small[quad * 4 + i]), 0);
      if (lane < kQuads && small[i]) hopper::add_in_cluster(sum, small[i]);
    }
  }
  if (blocks > 1) {
    hopper::arrive_cluster();
    if (rank != 0) return;
    hopper::wait_cluster();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < kQuads)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x.words[tile * kTile + r + i] = row_word<F>(largest[i], exponent[i], scratch.small[quad * 4 + i]);
}

// How the pass's blocks are dealt out: first those of b, then those of a.
struct PassGrid {
  int64_t blocks_b;
  int64_t busy_a, busy_b;          // blocks with work; the rest fills the last cluster
  int row_threads;                 // that hold a row along k; a power of two
  int strip;                       // columns of a strip: 16 or 32
};

template <class F, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) split_pass(const __grid_constant__ Job job,
                                                                     const __grid_constant__ PassGrid grid) {
  __shared__ StripScratch scratch;
  hopper::launch_dependents();
  const int64_t thread = int64_t{blockIdx.x} * THREADS + threadIdx.x;
  if (thread == 0) *job.any = 0;
  for (int64_t i = thread; i < 2 * int64_t{job.tiles}; i += int64_t{gridDim.x} * THREADS) job.flags[i] = 0;

  const bool is_b = blockIdx.x < grid.blocks_b;
  const Operand& x = is_b ? job.b : job.a;
  const int64_t block = is_b ? blockIdx.x : blockIdx.x - grid.blocks_b;
  if (block >= (is_b ? grid.busy_b : grid.busy_a)) return;
  if (x.along_k)
    split_rows<F, THREADS>(job, x, block, grid.row_threads, &scratch.of_warp[0][0]);
  else if (grid.strip == 16)
    split_strip<F, THREADS, 16>(job, x, block / hopper::cluster_size(), scratch);
  else
    split_strip<F, THREADS, 32>(job, x, block / hopper::cluster_size(), scratch);
}

}  // namespace sgemm::split
