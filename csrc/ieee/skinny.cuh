// Products with few columns (or few rows, transposed): bound by reading A once.
//
// Idea:   A goes straight from memory to registers, four elements per thread, and each element meets all of B's columns
//         there. B is small and stays in shared memory. If A runs along k, a warp owns rows and its lanes own parts of
//         k, which shuffles add up. If A runs along m, a lane owns four rows and the warps take turns in k.
// 16 bits: an A of bfloat16 or float16 is read directly.
// Long k: chains of sums along m end after a while; their sums are kept in shared memory.
// Small problems: the blocks of a cluster share a tile, each with a part of k. Beyond that, slices of k are separate
//         products.
// Bound:  memory, up to about 16 columns; then the FFMA pipe.
#pragma once
#include <type_traits>

#include "../gpu/ptx/async_copy.cuh"
#include "../gpu/cluster.cuh"
#include "../gpu/dependent_launch.cuh"
#include "../problem/elements.h"
#include "skinny.h"
#include "store_tile.cuh"

namespace sgemm::ieee {

constexpr int kThreads = Skinny::kThreads, kWarps = kThreads / 32;

struct SkinnyJob {
  Problem p;      // d takes the product, or the partial products of slices
  int64_t slice;  // k per slice
  int slices;
  int tiles_m, tiles_n;
  bool vector;    // A can be read four elements at a time
  bool b_vector;  // the same for B, along k
};

// Four neighbours of A, in their type in memory.
template <class T>
using Four = std::conditional_t<sizeof(T) == sizeof(float), float4, uint2>;

__device__ __forceinline__ void read_singles(float4& to, const float* from, int64_t stride, int64_t inside) {
  to.x = from[0];
  if (inside > 1) to.y = from[stride];
  if (inside > 2) to.z = from[2 * stride];
  if (inside > 3) to.w = from[3 * stride];
}
template <class T>
__device__ __forceinline__ void read_singles(uint2& to, const T* from, int64_t stride, int64_t inside) {
  to.x = from[0].bits;
  if (inside > 1) to.x |= uint32_t{from[stride].bits} << 16;
  if (inside > 2) to.y = from[2 * stride].bits;
  if (inside > 3) to.y |= uint32_t{from[3 * stride].bits} << 16;
}

// Reads four neighbours, which are read only once. `vector`: reads them together; otherwise one by one, those that are
// `inside`. The bits stay unconverted in their registers, because any conversion here would wait for memory.
template <class T>
__device__ __forceinline__ void read_four(Four<T>& to, const T* from, int64_t stride, int64_t inside, bool vector) {
  to = {};
  if (inside <= 0) return;
  if (vector && inside >= 4)
    to = __ldcs(reinterpret_cast<const Four<T>*>(from));
  else
    read_singles(to, from, stride, inside);
}

template <class T>
__device__ __forceinline__ float4 as_floats(const Four<T>& four) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return four;
  } else {
    const auto element = [](uint32_t bits) { return T{static_cast<uint16_t>(bits)}; };
    return make_float4(element(four.x), element(four.x >> 16), element(four.y), element(four.y >> 16));
  }
}

// The part of the product that a block computes.
template <class T>
struct SkinnyPart {
  int64_t m0, n0, k0, k1;
  int64_t entry;  // entry of d's batch
  MatrixView<const T> a;
  ConstMatrix b;

  __device__ __forceinline__ SkinnyPart(const SkinnyJob& job, int rows, int width, uint32_t rank, uint32_t blocks) {
    const int64_t tile = blockIdx.x / blocks;
    n0 = tile % job.tiles_n * width;
    m0 = tile / job.tiles_n % job.tiles_m * rows;
    entry = tile / job.tiles_n / job.tiles_m;
    const int64_t slice = entry % job.slices, batch = entry / job.slices;
    a = in_elements<T>(job.p.a).matrix(batch);
    b = job.p.b.matrix(batch);
    const int64_t first = slice * job.slice, end = min(job.p.k, first + job.slice);
    const int64_t each = ((end - first + blocks - 1) / blocks + 3) / 4 * 4;  // no quad is cut
    k0 = min(end, first + each * rank);
    k1 = min(end, k0 + each);
  }
};

// Starts to copy rows k ... k + DEPTH of the block's columns of B to [col * COL_PITCH + q * K_PITCH], with zeros
// outside.
template <int WIDTH, int DEPTH, int COL_PITCH, int K_PITCH, class T>
__device__ __forceinline__ void load_b(float* to, const SkinnyJob& job, const SkinnyPart<T>& part, int64_t k) {
  const int depth = static_cast<int>(max(int64_t{0}, min(int64_t{DEPTH}, part.k1 - k)));
  const int cols = static_cast<int>(min(int64_t{WIDTH}, part.b.cols - part.n0));
  const float* from = part.b.at(part.k0, part.n0);
  const int64_t row = k - part.k0;
  if (K_PITCH == 1 && job.b_vector) {
    for (int i = threadIdx.x; i < WIDTH * DEPTH / 4; i += kThreads) {
      const int col = i / (DEPTH / 4), q = i % (DEPTH / 4) * 4;
      const int valid = col < cols && q < depth ? 4 * min(4, depth - q) : 0;
      copy_async<16>(to + col * COL_PITCH + q, valid ? from + (row + q) + col * part.b.col : from, valid, true);
    }
  } else {
    const bool along_k = part.b.row == 1;
    for (int i = threadIdx.x; i < WIDTH * DEPTH; i += kThreads) {
      const int col = along_k ? i / DEPTH : i % WIDTH, q = along_k ? i % DEPTH : i / WIDTH;
      const bool inside = col < cols && q < depth;
      copy_async<4>(to + col * COL_PITCH + q * K_PITCH,
                    inside ? from + (row + q) * part.b.row + col * part.b.col : from, inside ? 4 : 0);
    }
  }
  commit_copies();
}

// Adds up each v[i] over the warp's lanes: in each round, half of the lanes keep half of the sums. Returns the index of
// the first sum that the lane then holds in v[0], v[1], ...: N / 32 sums, at least one.
template <int N>
__device__ __forceinline__ int add_up_lanes(float (&v)[N], int lane) {
  int first = 0, left = N;
#pragma unroll
  for (int o = 16; o; o /= 2) {
    const bool upper = lane & o;
    const int half = left / 2;
    if (half == 0) {
      v[0] += __shfl_xor_sync(~0u, v[0], o);
      continue;
    }
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      if (i >= half) continue;
      const float keep = upper ? v[i + half] : v[i], send = upper ? v[i] : v[i + half];
      v[i] = keep + __shfl_xor_sync(~0u, send, o);
    }
    first += upper ? half : 0;
    left = half;
  }
  return first;
}

// Stores the sum of the cluster's parts of the tile, (WIDTH, ROWS) each.
template <int WIDTH, int ROWS, class T>
__device__ __forceinline__ void store_part(const SkinnyJob& job, const SkinnyPart<T>& part, const float* sums,
                                           uint32_t rank, uint32_t blocks) {
  store_cluster_tile<ROWS, WIDTH, kThreads>(job.p, job.slices > 1, part.entry, part.m0, part.n0, rank, blocks,
                                            [&](int row, int col) { return sums + col * ROWS + row; });
}

template <int WIDTH, class T>
struct AlongK {
  static constexpr int kRowsOfWarp = 4;
  // Fours of each row that are read ahead into registers. With 16 columns, FFMAs dominate the time, and sums take the
  // registers.
  static constexpr int kAhead = WIDTH == 16 ? 1 : sizeof(float) / sizeof(T);
  static constexpr int kRows = kRowsOfWarp * kWarps;
  static constexpr int kDepth = WIDTH == 16 ? 256 : 512;  // k per buffer of B
  static constexpr int kPitch = kDepth + 4;               // columns start in different banks
  static_assert(kDepth % (kAhead * 128) == 0);
};

template <int WIDTH, class T>
__global__ void __launch_bounds__(kThreads, 2) skinny_along_k(const __grid_constant__ SkinnyJob job) {
  using S = AlongK<WIDTH, T>;
  __shared__ alignas(16) float bs[2][WIDTH][S::kPitch];
  __shared__ float sums[WIDTH][S::kRows];
  const uint32_t rank = cluster::rank(), blocks = cluster::size();
  const SkinnyPart<T> part(job, S::kRows, WIDTH, rank, blocks);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  const int64_t first_row = part.m0 + warp * S::kRowsOfWarp;
  const int rows = static_cast<int>(min(int64_t{S::kRowsOfWarp}, part.a.rows - first_row));  // number of rows inside
  const T* const from = part.a.at(rows > 0 ? first_row : 0, part.k0);
  const int64_t depth = part.k1 - part.k0;
  Four<T> next[S::kAhead][S::kRowsOfWarp];
  const auto fetch = [&](int turn, int64_t q) {
#pragma unroll
    for (int r = 0; r < S::kRowsOfWarp; ++r)
      read_four<T>(next[turn][r], from + r * part.a.row + q * part.a.col, part.a.col, r < rows ? depth - q : 0,
                   job.vector);
  };

  float acc[WIDTH * S::kRowsOfWarp] = {};  // (col, row)
  wait_for_predecessor();
  launch_dependents();
#pragma unroll
  for (int turn = 0; turn < S::kAhead; ++turn) fetch(turn, 4 * lane + turn * 128);
  load_b<WIDTH, S::kDepth, S::kPitch, 1>(&bs[0][0][0], job, part, part.k0);
  int buffer = 0;
  for (int64_t begin = 0; begin < depth; begin += S::kDepth, buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();  // B has arrived, and the other buffer is free
    load_b<WIDTH, S::kDepth, S::kPitch, 1>(&bs[buffer ^ 1][0][0], job, part, part.k0 + begin + S::kDepth);
#pragma unroll 1
    for (int q0 = 4 * lane; q0 < S::kDepth; q0 += S::kAhead * 128) {
#pragma unroll
      for (int turn = 0; turn < S::kAhead; ++turn) {
        const int q = q0 + turn * 128;
        float4 a[S::kRowsOfWarp];
#pragma unroll
        for (int r = 0; r < S::kRowsOfWarp; ++r) a[r] = as_floats<T>(next[turn][r]);
        fetch(turn, begin + q + S::kAhead * 128);
#pragma unroll
        for (int col = 0; col < WIDTH; ++col) {
          const float4 b = *reinterpret_cast<const float4*>(&bs[buffer][col][q]);
#pragma unroll
          for (int r = 0; r < S::kRowsOfWarp; ++r) {
            float& sum = acc[col * S::kRowsOfWarp + r];
            sum = fmaf(a[r].x, b.x, sum);
            sum = fmaf(a[r].y, b.y, sum);
            sum = fmaf(a[r].z, b.z, sum);
            sum = fmaf(a[r].w, b.w, sum);
          }
        }
      }
    }
  }
  wait_copies<0>();
  const int first = add_up_lanes(acc, lane);
#pragma unroll
  for (int i = 0; i < (WIDTH * S::kRowsOfWarp + 31) / 32; ++i) {
    const int e = first + i;
    sums[e / S::kRowsOfWarp][warp * S::kRowsOfWarp + e % S::kRowsOfWarp] = acc[i];
  }
  store_part<WIDTH, S::kRows>(job, part, &sums[0][0], rank, blocks);
}

template <int WIDTH>
struct AlongM {
  static constexpr int kRowsOfLane = 4;
  static constexpr int kRows = kRowsOfLane * 32;
  static constexpr int kAhead = WIDTH == 16 ? 4 : 8;                        // k that a warp reads ahead, in registers
  static constexpr int kDepth = WIDTH == 16 ? 128 : 256;                    // k per buffer of B
  static constexpr int kPitch = (WIDTH + 3) / 4 * 4 + (WIDTH < 4 ? 0 : 4);  // rows start in different banks
  static_assert(kSkinnyChain % kDepth == 0);
};

// Shared memory for the sums of the threads' chains, bytes; registers have no room for them. `depth`: the block's k.
inline int chain_bytes(int width, int64_t depth) {
  return depth > kSkinnyChain ? width * kThreads * static_cast<int>(sizeof(float4)) : 0;
}

__device__ __forceinline__ float4 add_fours(const float4& x, const float4& y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

// Adds up the warps' parts, (WIDTH, four rows per lane), to (WIDTH, rows), one warp after the other.
template <int WIDTH>
__device__ __forceinline__ void add_up_warps(const float4 (&part)[WIDTH], float* sums, int warp, int lane) {
  for (int turn = 0; turn < kWarps; ++turn) {
    if (warp == turn)
#pragma unroll
      for (int col = 0; col < WIDTH; ++col) {
        float4* const sum = reinterpret_cast<float4*>(sums + col * AlongM<WIDTH>::kRows) + lane;
        *sum = turn ? add_fours(*sum, part[col]) : part[col];
      }
    __syncthreads();
  }
}

template <int WIDTH, class T>
__global__ void __launch_bounds__(kThreads, 2) skinny_along_m(const __grid_constant__ SkinnyJob job) {
  using S = AlongM<WIDTH>;
  __shared__ alignas(16) float bs[2][S::kDepth][S::kPitch];
  __shared__ alignas(16) float sums[WIDTH][S::kRows];
  extern __shared__ float4 chains[];  // (WIDTH, threads); used with a long k
  const uint32_t rank = cluster::rank(), blocks = cluster::size();
  const SkinnyPart<T> part(job, S::kRows, WIDTH, rank, blocks);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  const int64_t m = part.m0 + lane * S::kRowsOfLane;
  const int rows = static_cast<int>(max(int64_t{0}, min(int64_t{S::kRowsOfLane}, part.a.rows - m)));  // rows inside
  const T* const from = part.a.at(rows ? m : 0, part.k0);
  const int64_t depth = part.k1 - part.k0;
  Four<T> next[S::kAhead];
  const auto fetch = [&](int64_t q) {
#pragma unroll
    for (int i = 0; i < S::kAhead; ++i)
      read_four<T>(next[i], from + (q + i * kWarps) * part.a.col, part.a.row, q + i * kWarps < depth ? rows : 0,
                   job.vector);
  };

  float4 acc[WIDTH] = {};
  wait_for_predecessor();
  launch_dependents();
  fetch(warp);
  load_b<WIDTH, S::kDepth, 1, S::kPitch>(&bs[0][0][0], job, part, part.k0);
  int buffer = 0;
  for (int64_t begin = 0; begin < depth; begin += S::kDepth, buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();  // B has arrived, and the other buffer is free
    load_b<WIDTH, S::kDepth, 1, S::kPitch>(&bs[buffer ^ 1][0][0], job, part, part.k0 + begin + S::kDepth);
#pragma unroll 1
    for (int q = warp; q < S::kDepth; q += kWarps * S::kAhead) {
      Four<T> fours[S::kAhead];
#pragma unroll
      for (int i = 0; i < S::kAhead; ++i) fours[i] = next[i];
      fetch(begin + q + kWarps * S::kAhead);
#pragma unroll
      for (int i = 0; i < S::kAhead; ++i) {
        const float4 a = as_floats<T>(fours[i]);
        float columns[S::kPitch];
#pragma unroll
        for (int col = 0; col < WIDTH; col += 4)
          *reinterpret_cast<float4*>(&columns[col]) =
              *reinterpret_cast<const float4*>(&bs[buffer][q + i * kWarps][col]);
#pragma unroll
        for (int col = 0; col < WIDTH; ++col) {
          acc[col].x = fmaf(a.x, columns[col], acc[col].x);
          acc[col].y = fmaf(a.y, columns[col], acc[col].y);
          acc[col].z = fmaf(a.z, columns[col], acc[col].z);
          acc[col].w = fmaf(a.w, columns[col], acc[col].w);
        }
      }
    }
    const int64_t end = begin + S::kDepth;
    if (end < depth && end % kSkinnyChain == 0) {
      int thread = threadIdx.x;
      asm volatile("" : "+r"(thread));  // opaque: a hoisted address would cost the loop a register
#pragma unroll
      for (int col = 0; col < WIDTH; ++col) {
        float4* const chain = &chains[col * kThreads + thread];
        float4 total = end > kSkinnyChain ? *chain : make_float4(0, 0, 0, 0);
        end_chain(total.x, acc[col].x);
        end_chain(total.y, acc[col].y);
        end_chain(total.z, acc[col].z);
        end_chain(total.w, acc[col].w);
        *chain = total;
      }
    }
  }
  wait_copies<0>();
  if (depth > kSkinnyChain)
#pragma unroll
    for (int col = 0; col < WIDTH; ++col) acc[col] = add_fours(chains[col * kThreads + threadIdx.x], acc[col]);
  add_up_warps(acc, &sums[0][0], warp, lane);
  store_part<WIDTH, S::kRows>(job, part, &sums[0][0], rank, blocks);
}

}  // namespace sgemm::ieee
