// A tile's marked elements computed again in float32, with all of their neighbours.
//
// Idea:   outer products on the CUDA cores: a step of k of both operands comes to shared memory, copied ahead of its
//         products, and each thread keeps a block of sums. No scales and no second test: float32's own range.
// Order:  sums of 32 of k are added up by eight, and these to the ones before: each adds to what is little larger.
// Block:  of a tile that a cluster's blocks finished in parts, each computes the columns of its own part, all of k.
// Calls:  a function of its own, so that the kernels in which it may be needed are what they would be without it.
// Bound:  the FFMA units.
#pragma once
#include "../gpu/ptx/async_copy.cuh"
#include "marks.cuh"

namespace sgemm::split {

constexpr int kRedoPitch = 4;  // floats between the lines of k, beside a line's own
constexpr int kRedoGroup = 8;  // steps, whose sums are added up before they are added to the others'

// ROWS rows of an operand, kStep of k at a time, on their way to shared memory: to[k][row]. Rows that lie side by side
// are copied four at once, if they can be; others one by one, so that lanes read whole sectors, and write to different
// banks.
template <int ROWS>
class RedoCopies {
 public:
  static constexpr int kPitch = ROWS + kRedoPitch;

  // From row `first` of the operand on.
  __device__ __forceinline__ RedoCopies(const Operand& x, int batch, int64_t first, int64_t depth, int t)
      : along_k_(x.along_k),
        quads_(!x.along_k && x.vector),
        row_(along_k_ ? t % 32 / 8 + t / 128 * 4
             : quads_ ? t % (ROWS / 4) * 4
                      : t % ROWS),
        k_(along_k_ ? t % 8 + t / 32 % 4 * 8
           : quads_ ? t / (ROWS / 4)
                    : t / ROWS),
        rows_left_(static_cast<int>(min(x.size - first, int64_t{ROWS})) - row_),
        rows_apart_(along_k_ ? kRowsApart : 0),
        k_apart_(along_k_ ? 0
                 : quads_ ? 4 * kApart
                          : kApart),
        apart_(rows_apart_ * x.stride + k_apart_ * x.k_stride),
        step_(kStep * x.k_stride),
        depth_(depth),
        from_(x.data + x.batch.offset(batch) + (first + row_) * x.stride + k_ * x.k_stride) {}

  // The next step's.
  __device__ __forceinline__ void copy(float* to) {
    to += k_ * kPitch + row_;
    const float* from = from_;
    const int k_left = static_cast<int>(min(depth_, int64_t{kStep})) - k_;
    int left = k_left <= 0 || rows_left_ <= 0 ? 0 : along_k_ ? rows_left_ : k_left;  // rows, or k, from here on
    const auto advance = [&] {
      from += apart_;
      to += rows_apart_ + k_apart_ * kPitch;
      left -= rows_apart_ + k_apart_;
    };
    if (quads_) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i, advance())
        if (k_ < kStep) copy_async<16>(to, from, left > 0 ? 16 : 0);
    } else {
#pragma unroll
      for (int i = 0; i < kCopies; ++i, advance()) copy_async<4>(to, from, left > 0 ? 4 : 0);
    }
    from_ += step_;
    depth_ -= kStep;
  }

 private:
  static constexpr int kCopies = ROWS * kStep / kConsumers, kRowsApart = 8, kApart = kConsumers / ROWS;  // of k
  static constexpr int kQuads = kCopies > 4 ? kCopies / 4 : 1;
  static_assert(kStep == 32 && kCopies * kRowsApart == ROWS);

  const bool along_k_, quads_;
  const int row_, k_, rows_left_;
  const int rows_apart_, k_apart_;  // of copies, of which nothing is read outside the operand
  const int64_t apart_, step_;
  int64_t depth_;      // of k, from the next step on
  const float* from_;  // of the next step
};

// How the threads share 128 rows x COLS columns: each has groups of up to four rows and columns.
template <int COLS>
struct RedoShape {
  static constexpr int kRows = kTile, kCols = COLS;
  static constexpr int kOwnRows = COLS >= 64 ? 8 : 4, kSums = kRows * COLS / kConsumers, kOwnCols = kSums / kOwnRows;
  static constexpr int kAcross = COLS / kOwnCols;  // threads
  static constexpr int kGroup = kOwnCols < 4 ? kOwnCols : 4;

  __device__ __forceinline__ static int row(int t, int i) {
    return t / kAcross * 4 + i / 4 * (kConsumers / kAcross * 4) + i % 4;
  }
  __device__ __forceinline__ static int col(int t, int j) {
    return t % kAcross * kGroup + j / kGroup * (kAcross * kGroup) + j % kGroup;
  }
};

template <class R>
struct RedoMemory {
  static constexpr bool kHeld = R::kSums <= 32;  // a group's sums are held in registers
  struct Stage {
    float a[kStep][RedoCopies<R::kRows>::kPitch], b[kStep][RedoCopies<R::kCols>::kPitch];
  } stages[2];
  float total[R::kSums][kConsumers], group[kHeld ? 1 : R::kSums][kConsumers];
};

// COUNT neighbours, in groups of up to four that are APART.
template <int COUNT, int GROUP, int APART>
__device__ __forceinline__ void read_groups(float (&x)[COUNT], const float* from) {
  struct alignas(4 * GROUP) Group {
    float x[GROUP];
  };
#pragma unroll
  for (int i = 0; i < COUNT; i += GROUP) {
    const Group group = *reinterpret_cast<const Group*>(from + i / GROUP * APART);
#pragma unroll
    for (int e = 0; e < GROUP; ++e) x[i + e] = group.x[e];
  }
}

// Elements that overflow stay marked.
template <int COLS>
static __device__ __noinline__ void redo_tile(const Job& job, const Corner& tile, uint32_t rank, int t, Marks& marks,
                                              char* rest) {
  using R = RedoShape<COLS>;
  RedoMemory<R>& memory = *reinterpret_cast<RedoMemory<R>*>(rest);
  const int64_t depth = job.depth(tile.batch);
  const int first_col = static_cast<int>(rank) * COLS;
  RedoCopies<R::kRows> copies_a(job.a, tile.batch, tile.row, depth, t);
  RedoCopies<R::kCols> copies_b(job.b, tile.batch, tile.col + first_col, depth, t);
  const auto copy = [&](int stage) {
    copies_a.copy(memory.stages[stage].a[0]);
    copies_b.copy(memory.stages[stage].b[0]);
    commit_copies();
  };
  const int steps = static_cast<int>(ceil_div(depth, kStep));
  float acc[R::kOwnRows][R::kOwnCols] = {}, held[RedoMemory<R>::kHeld ? R::kSums : 1] = {};
  const auto group = [&](int e) -> float& {
    if constexpr (RedoMemory<R>::kHeld)
      return held[e];
    else
      return memory.group[e][t];
  };
  copy(0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    sync_consumers();  // and the step before has been read
    if (step + 1 < steps) copy((step + 1) % 2);
    const auto& stage = memory.stages[step % 2];
    const float *a = &stage.a[0][R::row(t, 0)], *b = &stage.b[0][R::col(t, 0)];
#pragma unroll 4
    for (int q = 0; q < kStep; ++q, a += RedoCopies<R::kRows>::kPitch, b += RedoCopies<R::kCols>::kPitch) {
      float x[R::kOwnRows], y[R::kOwnCols];
      read_groups<R::kOwnRows, 4, kConsumers / R::kAcross * 4>(x, a);
      read_groups<R::kOwnCols, R::kGroup, R::kAcross * R::kGroup>(y, b);
#pragma unroll
      for (int i = 0; i < R::kOwnRows; ++i)
#pragma unroll
        for (int j = 0; j < R::kOwnCols; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }
    const bool first = step % kRedoGroup == 0, ends = step % kRedoGroup == kRedoGroup - 1 || step + 1 == steps;
#pragma unroll
    for (int e = 0; e < R::kSums; ++e) {
      float& own = acc[e / R::kOwnCols][e % R::kOwnCols];
      group(e) = first ? own : group(e) + own;
      own = 0;
    }
    if (!ends) continue;
#pragma unroll
    for (int e = 0; e < R::kSums; ++e) {
      memory.total[e][t] = step < kRedoGroup ? group(e) : memory.total[e][t] + group(e);
    }
  }
#pragma unroll 1
  for (int e = 0; e < R::kSums; e += R::kGroup) {
    const int i = R::row(t, e / R::kOwnCols), j = first_col + R::col(t, e % R::kOwnCols);
    const uint32_t marked = marks.bits[i][j / 32] >> j % 32;
    uint32_t stored = 0;
#pragma unroll
    for (int x = 0; x < R::kGroup; ++x) {
      const float sum = memory.total[e + x][t];
      if ((marked >> x & 1) && isfinite(sum) && store_redone(job, tile.batch, tile.row + i, tile.col + j + x, sum))
        stored |= 1u << x;
    }
    if (stored) atomicAnd(&marks.bits[i][j / 32], ~(stored << j % 32));
  }
}

// Of a tile that a cluster's `blocks` finished in parts, the part of block `rank`.
template <class Shape>
__device__ __forceinline__ void redo_tile(const Job& job, const Corner& tile, uint32_t rank, uint32_t blocks, int t,
                                          Marks& marks, char* rest) {
  if constexpr (!Shape::kHalfSize)
    if (blocks == 1) return redo_tile<128>(job, tile, rank, t, marks, rest);
  if (blocks == (Shape::kHalfSize ? 1 : 2)) return redo_tile<64>(job, tile, rank, t, marks, rest);
  if (blocks == (Shape::kHalfSize ? 2 : 4)) return redo_tile<32>(job, tile, rank, t, marks, rest);
  if constexpr (Shape::kHalfSize) redo_tile<16>(job, tile, rank, t, marks, rest);
}

}  // namespace sgemm::split
