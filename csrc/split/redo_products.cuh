// A tile's marked elements computed again on the tensor cores, split into three bfloat16, which have float32's range.
//
// Idea:   the consumers do all of it: each thread copies float32s to shared memory two steps ahead and splits its
//         own of the next step, and each warp multiplies 16 rows of this one. The scales are those of the first try,
//         2^26 times finer; small elements are counted on the way and tested for as ever.
// Block:  of a tile that a cluster's blocks finished in parts, each computes the columns of its own part, all of k.
// Calls:  a function of its own, so that the kernels in which it may be needed are what they would be without it. wgmma
//         would not do: ptxas would have its products in the caller wait for each other.
// Bound:  the tensor cores, six products per step; in parts, the threads that split.
#pragma once
#include "../epilogue/activation.h"
#include "../gpu/ptx/async_copy.cuh"
#include "epilogue.cuh"
#include "warp_product.cuh"

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
  uint32_t counts[2], extreme;

  __device__ __forceinline__ bool is_marked(int row, int col) const { return bits[row][col / 32] >> col % 32 & 1; }
  __device__ __forceinline__ void clear(int row, int col) { atomicAnd(&bits[row][col / 32], ~(1u << col % 32)); }
};
constexpr int kMarksBytes = 4096;
static_assert(sizeof(Marks) <= kMarksBytes);

// D's element from its sum times 2^exponent; not where D adds up pieces of k and overflows.
__device__ __forceinline__ bool store_redone(const Job& job, int batch, int64_t i, int64_t j, float sum, int exponent) {
  int of_alpha;
  const float alpha = frexpf(job.p.alpha, &of_alpha);
  return store_element(job.p, job.p.c.matrix(batch).at(i, j), job.p.d.matrix(batch).at(i, j),
                       unscaled(alpha * sum, exponent + of_alpha));
}

// The same from a sum over all of k, also where D adds up pieces of it: there the sum may be finite that the pieces'
// sums are not.
__device__ __forceinline__ void store_whole(const Job& job, int batch, int64_t i, int64_t j, float sum) {
  if (job.p.k_before > 0)
    *job.p.d.matrix(batch).at(i, j) = activated(job.p.activation, sum);
  else
    store_redone(job, batch, i, j, sum, 0);
}

// The part of a tile that a block redoes: all rows, and the COLS columns that block `rank` finished.
template <int COLS>
struct RedoShape {
  static constexpr int kRows = kTile, kCols = COLS;
  static constexpr int kSums = COLS / 2;  // of a thread
  static constexpr int kBytesA = kRows * kRowBytes * kPairs<Bf16x6>, kBytesB = kCols * kRowBytes * kPairs<Bf16x6>;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kPitch = kCols + 1;  // of sums on their way out

  // The tile's column, of this shape's j-th.
  __device__ __forceinline__ static int column(int j, uint32_t rank) { return static_cast<int>(rank) * COLS + j; }
};

// Two stages of panels, float32s of the step behind, and what is known of rows, of A first and then of B.
template <class R>
struct RedoMemory {
  static constexpr int kRows = R::kRows + R::kCols;
  alignas(1024) char stages[2][R::kStageBytes];
  float4 raw[2][kConsumers * 4];
  float first[kRows], second[kRows];  // a row's scale: one factor may be too large for a float
  uint32_t small[kRows];
};

// A thread's quads of an operand's steps, four of k of a row each. Along k eight neighbouring threads share a row, else
// they have a row each.
template <int ROWS>
class RedoQuads {
 public:
  // Row r of these is `at(r)` of the operand.
  template <class At>
  __device__ __forceinline__ RedoQuads(const Operand& x, int batch, int64_t depth, int t, const At& at)
      : active_(ROWS >= 32 || t < ROWS * 8),
        along_k_(x.along_k),
        vector_(x.along_k && x.vector),
        row_(x.along_k ? t / 8 : t % ROWS),
        k_(x.along_k ? t % 8 * 4 : t / ROWS * 4),
        depth_(depth),
        k_stride_(x.k_stride),
        nothing_(x.data) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int64_t row = at(row_of(i));
      inside_[i] = active_ && row < x.size;
      from_[i] = x.data + x.batch.offset(batch) + (inside_[i] ? row * x.stride + k_of(i) * x.k_stride : 0);
    }
  }

  // The next step's, one after the other.
  __device__ __forceinline__ void copy(float4* raw) {
    if (active_) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        float* to = reinterpret_cast<float*>(raw + i * kConsumers);
        const int64_t left = inside_[i] ? depth_ - k_of(i) : 0;
        if (vector_) {
          copy_async<16>(to, left > 0 ? from_[i] : nothing_, left > 0 ? 16 : 0);
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            copy_async<4>(to + e, e < left ? from_[i] + e * k_stride_ : nothing_, e < left ? 4 : 0);
        }
        from_[i] += kStep * k_stride_;
      }
      depth_ -= kStep;
    }
    commit_copies();
  }

  // To planes in `panel`, once they are there. `first`, `second` and `small` are the operand's rows'; `extreme`: some
  // second factors are not 1.
  __device__ __forceinline__ void split(const float4* raw, char* panel, const float* first, const float* second,
                                        bool extreme, uint32_t* small) const {
    if (!active_) return;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4 x = raw[i * kConsumers];
      const float by = first[row_of(i)];
      float4 v = make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
      if (extreme) {
        const float again = second[row_of(i)];
        v = make_float4(v.x * again, v.y * again, v.z * again, v.w * again);
      }
      const PanelPlace place = place_in_panel<false, true>(row_of(i), k_of(i));
      const QuadPlanes<Bf16x6> planes(v);
      *reinterpret_cast<uint2*>(panel + place.first) = make_uint2(planes.xy[0], planes.zw[0]);
      *reinterpret_cast<uint2*>(panel + place.second) = make_uint2(planes.xy[1], planes.zw[1]);
      *reinterpret_cast<uint2*>(panel + place.first + ROWS * kRowBytes) = make_uint2(planes.xy[2], planes.zw[2]);
      if (fminf(fminf(fabsf(v.x), fabsf(v.y)), fminf(fabsf(v.z), fabsf(v.w))) < Bf16x6::kSmall) {
        const uint32_t count = is_small<Bf16x6>(x.x, v.x) + is_small<Bf16x6>(x.y, v.y) + is_small<Bf16x6>(x.z, v.z) +
                               is_small<Bf16x6>(x.w, v.w);
        if (count) atomicAdd(&small[row_of(i)], count);
      }
    }
  }

 private:
  static constexpr int kQuads = ROWS < 32 ? 1 : ROWS / 32;
  __device__ __forceinline__ int row_of(int i) const { return along_k_ ? row_ + i * 32 : row_; }
  __device__ __forceinline__ int k_of(int i) const { return along_k_ ? k_ : k_ + i * (4 * kConsumers / ROWS); }

  const bool active_, along_k_, vector_;
  const int row_, k_;
  int64_t depth_;  // of k, from the next step on
  const int64_t k_stride_;
  const float* const nothing_;
  bool inside_[kQuads];
  const float* from_[kQuads];
};

// A warp's 16 rows of a stage's panels times COLS columns, added to `sum`: the corrections first, then hi * hi.
template <class R, int COLS>
__device__ __forceinline__ void multiply_stage(uint32_t stage, int first_row, float (&sum)[COLS / 2]) {
  const int lane = threadIdx.x % 32;
  const auto address = [](uint32_t panels, int rows, int row, int plane, int chunk) {
    return panels + plane / 2 * rows * kRowBytes + row * kRowBytes + (((plane % 2 * 4 + chunk) ^ row % 8) << 4);
  };
  uint32_t a[2][3][4];  // (half of the step, plane)
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int plane = 0; plane < 3; ++plane)
      load_matrices(a[half][plane], address(stage, R::kRows, first_row + lane % 16, plane, half * 2 + lane / 16));
      // Two blocks of columns and both halves at once: four chains of products that don't wait for each other.
#pragma unroll
  for (int n = 0; n < COLS; n += 16) {
    uint32_t b[2][3][4];
    float fresh[2][2][4] = {};  // (block, half)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int plane = 0; plane < 3; ++plane)
        load_matrices(b[j][plane], address(stage + R::kBytesA, R::kCols, n + j * 8 + lane % 8, plane, lane / 8));
#pragma unroll
    for (int order = 2; order >= 0; --order)
#pragma unroll
      for (int i = 0; i <= order; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t(&x)[4] = a[half][i], (&y)[4] = b[j][order - i];
            multiply<__nv_bfloat16>(fresh[j][half], x[0], x[1], x[2], x[3], y[half * 2], y[half * 2 + 1]);
          }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[(n + j * 8) / 2 + e] += fresh[j][0][e] + fresh[j][1][e];
  }
}

template <int COLS>
static __device__ __noinline__ void redo_products(const Job& job, const Corner& tile, uint32_t rank, int t,
                                                  Marks& marks, char* rest) {
  using R = RedoShape<COLS>;
  RedoMemory<R>& memory = *reinterpret_cast<RedoMemory<R>*>(rest);
  const int64_t depth = job.depth(tile.batch);
  const int steps = static_cast<int>((depth + kStep - 1) / kStep);
  RedoQuads<R::kRows> quads_a(job.a, tile.batch, depth, t, [&](int row) { return tile.row + row; });
  RedoQuads<R::kCols> quads_b(job.b, tile.batch, depth, t, [&](int row) { return tile.col + R::column(row, rank); });
  bool extreme = false;
  for (int row = t; row < R::kRows + R::kCols; row += kConsumers) {
    const uint32_t word = row < R::kRows ? marks.words[0][row] : marks.words[1][R::column(row - R::kRows, rank)];
    const int exponent = kFiner - word_exponent(word), first = min(exponent, 127);
    memory.first[row] = power_of_two(first);
    memory.second[row] = power_of_two(exponent - first);
    memory.small[row] = 0;
    extreme |= exponent != first;
  }
  if (t == 0) marks.extreme = 0;
  sync_consumers();
  if (extreme) marks.extreme = 1;
  sync_consumers();
  extreme = marks.extreme;

  const int row0 = t / 32 * 16;  // of the warp
  float sum[R::kSums];
#pragma unroll
  for (int e = 0; e < R::kSums; ++e) sum[e] = 0;
  // A step is copied two turns before its products, and split in between. Half of the warps split while the others
  // multiply: of the two on a scheduler, one each.
  const bool splits_first = t < kConsumers / 2;
#pragma unroll 1
  for (int step = -2; step < steps; ++step) {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      if ((half == 0) != splits_first) {
        if (step >= 0) multiply_stage<R, COLS>(hopper::shared_address(memory.stages[step % 2]), row0, sum);
        continue;
      }
      if (step >= -1 && step + 1 < steps) {
        wait_copies<0>();
        char* const stage = memory.stages[(step + 1) % 2];
        quads_a.split(memory.raw[0] + t, stage, memory.first, memory.second, extreme, memory.small);
        quads_b.split(memory.raw[1] + t, stage + R::kBytesA, memory.first + R::kRows, memory.second + R::kRows, extreme,
                      memory.small + R::kRows);
      }
      if (step + 2 < steps) {
        quads_a.copy(memory.raw[0] + t);
        quads_b.copy(memory.raw[1] + t);
      }
      __syncwarp();
    }
    sync_consumers();
  }

  float* const sums = reinterpret_cast<float*>(memory.stages[0]);  // (kRows, kPitch)
  static_assert(R::kRows * R::kPitch * sizeof(float) <= sizeof memory.stages);
#pragma unroll
  for (int e = 0; e < R::kSums; ++e) {
    const int row = row0 + t % 32 / 4 + e / 2 % 2 * 8, col = e / 4 * 8 + t % 4 * 2 + e % 2;
    sums[row * R::kPitch + col] = sum[e];
  }
  sync_consumers();
#pragma unroll 1
  for (int x = t; x < R::kRows * R::kCols; x += kConsumers) {
    const int i = x / R::kCols, j = x % R::kCols, col = R::column(j, rank);
    if (!marks.is_marked(i, col)) continue;
    const float sum = sums[i * R::kPitch + j];
    const float least = Bf16x6::kThreshold * static_cast<float>(memory.small[i] + memory.small[R::kRows + j]);
    const int exponent = word_exponent(marks.words[0][i]) + word_exponent(marks.words[1][col]) - 2 * kFiner;
    const bool certain = fabsf(sum) >= least && isfinite(sum);
    if (!certain || (isinf(unscaled(sum, exponent)) && !surely_overflows(sum, exponent))) continue;
    if (store_redone(job, tile.batch, tile.row + i, tile.col + col, sum, exponent)) marks.clear(i, col);
  }
}

template <class Shape>
__device__ __forceinline__ void redo_products(const Job& job, const Corner& tile, uint32_t rank, uint32_t blocks, int t,
                                              Marks& marks, char* rest) {
  if constexpr (!Shape::kHalfSize)
    if (blocks == 1) return redo_products<128>(job, tile, rank, t, marks, rest);
  if (blocks == (Shape::kHalfSize ? 1 : 2)) return redo_products<64>(job, tile, rank, t, marks, rest);
  if (blocks == (Shape::kHalfSize ? 2 : 4)) return redo_products<32>(job, tile, rank, t, marks, rest);
  if constexpr (Shape::kHalfSize) redo_products<16>(job, tile, rank, t, marks, rest);
}

}  // namespace sgemm::split
