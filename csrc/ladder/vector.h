// Accesses to four neighbouring elements of a row at once.
#pragma once
#include "../epilogue/store.h"
#include "../gpu/ptx/async_copy.cuh"

namespace sgemm::SGEMM_BACKEND {

// Loads elements (i, j) ... (i, j+3), with zeros outside. Preconditions: x satisfies Reads::kAlignedRows, and j is a
// multiple of 4.
__device__ __forceinline__ float4 load4(const ConstMatrix& x, int64_t i, int64_t j) {
  if (!x.contains(i, j)) return make_float4(0, 0, 0, 0);
  return *reinterpret_cast<const float4*>(x.data + i * x.row + j);
}

__device__ __forceinline__ float4 load4(const float* x) { return *reinterpret_cast<const float4*>(x); }

// Returns the number of `size` elements that lie before the end, which is `left` elements away.
__device__ __forceinline__ int inside(int64_t left, int size) { return left < size ? static_cast<int>(left) : size; }

// The part of a ROWS x COLS tile that one of THREADS threads copies: float4s kStride rows apart, through a pointer that
// moves from tile to tile. Equivalent to load4() at each place, but constant addresses and limits are hoisted out of
// the loop.
template <int ROWS, int COLS, int THREADS>
struct TileReader {
  static constexpr int kCopies = ROWS * COLS / (4 * THREADS), kStride = 4 * THREADS / COLS;
  static_assert(ROWS == kCopies * kStride, "the threads copy whole tiles, in columns of float4s");
  int row, col;  // place of the thread's first float4 in the tile
  const float* from;
  int64_t pitch;

  // The tile begins at (i, j).
  __device__ TileReader(const ConstMatrix& x, int64_t i, int64_t j, int t)
      : row(4 * t / COLS), col(4 * t % COLS), from(x.data + (i + row) * x.row + j + col), pitch(x.row) {}

  // Reads zeros beyond the first `rows` and `cols` of the tile.
  __device__ __forceinline__ void read(float4 (&out)[kCopies], int rows, int cols) const {
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      out[i] = row + i * kStride < rows && col < cols ? load4(from + i * kStride * pitch) : make_float4(0, 0, 0, 0);
  }

  // The same, but starts asynchronous copies to a tile in shared memory.
  __device__ __forceinline__ void copy(float* tile, int rows, int cols) const {  // (ROWS,COLS)
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      copy_async<16>(tile + (row + i * kStride) * COLS + col, from + i * kStride * pitch,
                     row + i * kStride < rows && col < cols ? 16 : 0);
  }
};

// Stores to a row-major tile transposed: v holds four elements along k of one row of A.
template <int BM>
__device__ __forceinline__ void store_transposed(float (*tile)[BM], int q, int row, const float4& v) {  // (BK,BM)
  tile[q][row] = v.x;
  tile[q + 1][row] = v.y;
  tile[q + 2][row] = v.z;
  tile[q + 3][row] = v.w;
}

// Like store() for acc[0..3] at (i, j) ... (i, j+3), with one 16-byte store if D's rows allow it.
__device__ __forceinline__ void store4(const Problem& p, const Tile& tile, int64_t i, int64_t j, const float* acc) {
  const Matrix d = p.d.matrix(tile.batch);
  float* target = d.at(i, j);
  if (p.beta == 0 && d.col == 1 && d.contains(i, j + 3) && reinterpret_cast<uintptr_t>(target) % 16 == 0) {
    *reinterpret_cast<float4*>(target) =
        make_float4(p.alpha * acc[0], p.alpha * acc[1], p.alpha * acc[2], p.alpha * acc[3]);
  } else {
    for (int s = 0; s < 4; ++s) store(p, tile, i, j + s, acc[s]);
  }
}

}  // namespace sgemm::SGEMM_BACKEND
