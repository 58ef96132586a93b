// The product of split operands if one has few rows: a layer's weight, and activations in decoding.
//
// Idea:   the larger operand is A: its rows are wgmma's M. The few are its N: 8, 16, 32 or 64 of them. k is cut into
//         parts, so that the blocks of the whole GPU read A's planes once. A tile's last block adds its parts up in
//         order. If A is packed, its first stages are copied while the convert kernel splits the few rows.
// Parts:  ring, mainloop, guard, epilogue and redo are the product's (../gemm). Those have bands of 32 columns: columns
//         beyond the multiplied ones are zeros outside of D.
// Bound:  memory, up to 64 columns.
#pragma once
#include "../gemm/product.cuh"

namespace sgemm::split {

// As many stages as shared memory holds. They are filled with A while the convert kernel runs.
constexpr int few_rows_stages(int cols) {
  constexpr int kBytes = 227 * 1024 - kStagingBytes - 4 * 1024;  // all but the block's other shared memory
  const int stages = kBytes / ((kTile + cols) * kRowBytes);
  return stages < kMaxStages ? stages : kMaxStages;
}

template <int COLS>
struct FewRowsRing : StageRing<kTile * kRowBytes, COLS * kRowBytes, few_rows_stages(COLS)> {
  static constexpr int kShapeCols = COLS < 32 ? 32 : COLS;
  using Shape = TileShape<kTile, kShapeCols>;
  static constexpr int kRows = kTile, kCols = COLS;  // of the panels in a stage
  static constexpr int kSums = kTile * COLS / kConsumers;
  static constexpr bool kFew = true;
};

// The parts of a batch-invariant product's tile are the segments of its k.
struct FewRowsScheduler : TileScheduler {
  using TileScheduler::TileScheduler;
  __device__ __forceinline__ WorkTile work_tile(const Job& job, int index) const {
    WorkTile work = TileScheduler::work_tile(job, index);
    if (job.segment == 0 || work.count == 1) return work;
    work.first = work.index * job.segment;
    work.steps = min(job.segment, job.steps - work.first);
    return work;
  }
};

template <int COLS>
struct FewRowsScales : FixedScales {
  static constexpr bool kColMajorD = true, kManyParts = true;
  template <int N>
  __device__ __forceinline__ static bool fix_up(const Job& job, Shared& shared, const WorkTile& work, float (&sum)[N],
                                                int t) {
    constexpr int kSums = FewRowsRing<COLS>::kSums;
    float own[kSums];
#pragma unroll
    for (int e = 0; e < kSums; ++e) own[e] = sum[e];
    const bool last = split::fix_up(job, work, own, shared.last, t);
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] = own[e];
    return last;
  }
};

// The product's mainloop for the columns that are multiplied.
template <int COLS>
struct FewRowsMainloop {
  template <class ViewA, class ViewB, int N>
  __device__ __forceinline__ static void run(const Job& job, ProductShared& shared, const char* ring, const ViewA& a,
                                             const ViewB& b, PipelineState<FewRowsRing<COLS>::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&correction)[N]) {
    constexpr int kSums = FewRowsRing<COLS>::kSums;
    float of_cols[kSums], corrections[kSums];
    KeepCorrections<Fp16x3, FewRowsRing<COLS>>::run(job, shared, ring, a, b, at, t, steps, of_cols, corrections);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      sum[e] = e < kSums ? of_cols[e % kSums] : 0;
      correction[e] = e < kSums ? corrections[e % kSums] : 0;
    }
  }
};

// Gives the tile's columns that are not multiplied the scales of columns of zeros.
template <class R>
__device__ __forceinline__ void clear_scales(ProductShared& shared) {
  constexpr RowScale kZeros = kMinusInfinity | 128;
  const int col = R::kCols + static_cast<int>(threadIdx.x);
  if (col >= R::Shape::kCols) return;
  shared.row_scales[0][1][col] = shared.row_scales[1][1][col] = kZeros;
}

template <int COLS, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1) split_few_rows(const __grid_constant__ Job job) {
  using R = FewRowsRing<COLS>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ ProductShared shared;
  if (threadIdx.x < 32) shared.init<R>(1, 1, 1);
  clear_scales<R>(shared);
  __syncthreads();

  if (threadIdx.x < 128) {
    if (threadIdx.x == 0) produce<Fp16x3, R>(job, ring, shared, FewRowsScheduler(job));
  } else {
    hopper::wait_for_predecessor();
    hopper::launch_dependents();
    float* staging = reinterpret_cast<float*>(ring + R::kBytes);
    consume<R, FewRowsScales<COLS>, FewRowsMainloop<COLS>, PlaneView<A_ALONG_M, R::kRows>,
            PlaneView<B_ALONG_N, R::kCols>>(job, ring, staging, shared, threadIdx.x - 128, FewRowsScheduler(job));
  }
}

}  // namespace sgemm::split
