// The elements of a tile that the guard marked, and how they are stored anew.
#pragma once
#include "../epilogue/activation.h"
#include "epilogue.cuh"

namespace sgemm::split {

// A tile's first element.
struct Corner {
  int batch;
  int64_t row, col;
};

// The marked elements of a tile, in shared memory.
struct Marks {
  uint32_t bits[kTile][kTile / 32];   // one per element
  uint32_t words[2][kTile];           // of the tile's rows and columns
  uint32_t inf_lines[2][kTile / 32];  // those that hold Inf, by bits
  uint32_t counts[2];

  __device__ __forceinline__ bool is_marked(int row, int col) const { return bits[row][col / 32] >> col % 32 & 1; }
  // Those of word `i` of the bits whose row and column hold no Inf.
  __device__ __forceinline__ uint32_t finite(int i) const {
    const int row = i / (kTile / 32);
    return inf_lines[0][row / 32] >> row % 32 & 1 ? 0 : bits[0][i] & ~inf_lines[1][i % (kTile / 32)];
  }
  __device__ __forceinline__ void clear(int row, int col) { atomicAnd(&bits[row][col / 32], ~(1u << col % 32)); }
};
constexpr int kMarksBytes = 4096;
static_assert(sizeof(Marks) <= kMarksBytes);

// Stores elements of D from their sums.
class RedoneStore {
 public:
  __device__ __forceinline__ RedoneStore(const Job& job, int batch)
      : job_(job), c_(job.p.c.matrix(batch)), d_(job.p.d.matrix(batch)) {}

  // False, and nothing stored, where D adds up pieces of k and overflows.
  __device__ __forceinline__ bool operator()(int64_t i, int64_t j, float sum) const {
    const float* const c = c_.at(i, j);
    float* const d = d_.at(i, j);
    if (job_.scaled_only) {
      *d = add_c(job_.p, job_.p.alpha * sum, c);
      return true;
    }
    int of_alpha;
    const float alpha = frexpf(job_.p.alpha, &of_alpha);
    return store_element(job_.p, c, d, unscaled(alpha * sum, of_alpha));
  }

 private:
  const Job& job_;
  const ConstMatrix c_;
  const Matrix d_;
};

__device__ __forceinline__ bool store_redone(const Job& job, int batch, int64_t i, int64_t j, float sum) {
  return RedoneStore(job, batch)(i, j, sum);
}

// The same from a sum over all of k, also where D adds up pieces of it: there the sum may be finite that the pieces'
// sums are not.
__device__ __forceinline__ void store_whole(const Job& job, int batch, int64_t i, int64_t j, float sum) {
  if (job.p.k_before > 0)
    *job.p.d.matrix(batch).at(i, j) = activated(job.p.activation, sum);
  else
    store_redone(job, batch, i, j, sum);
}

}  // namespace sgemm::split
