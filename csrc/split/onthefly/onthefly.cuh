// On-the-fly products: the large operand is read once, and split in registers on its way to the tensor cores.
//
// Idea:   a large operand that few tiles share need not be written to memory as planes. Its raw panels come to shared
//         memory unchanged. Each consumer warp reads 16 rows of them as the fragments of a wgmma whose A is in
//         registers. Each warp scales (split_rows.cuh) and splits its fragments while the tensor cores work on the
//         previous ones. The other operand is small: the convert kernel has split it.
// Block:  as in split_product, for tiles of 128 rows and 64 columns. The on-the-fly operand is A; a problem in which
//         that operand is B is solved transposed.
// Start:  the first raw panels are copied while the convert kernel, which writes none of them, still runs.
// Order:  a fragment's elements are taken from the places along k that can be read best. Where A lies along k, a lane
//         reads four neighbours at once, and the convert kernel has written B's planes in that order
//         (Operand::by_lanes).
// Bound:  memory, and the consumers: about 14 instructions an element, each of which waits for the previous one.
#pragma once
#include "../gemm/product.cuh"
#include "producer.cuh"
#include "split_rows.cuh"

namespace sgemm::split {

// Reads a consumer thread's elements of a stage.
template <bool ALONG_M>
class FragmentReader {
 public:
  using Panel = RawPanel<ALONG_M>;
  __device__ __forceinline__ explicit FragmentReader(int t) {
    const int row = t / 32 * 16 + t % 32 / 4, c = t % 4;
    first_ = Panel::place(row, ALONG_M ? 2 * c : 4 * c);
  }

  __device__ __forceinline__ void read(const char* panel, RawFragments& v) const {
    if constexpr (ALONG_M) {
      // Eight rows further on, and at the next of k, the swizzle takes another chunk of 16 bytes.
      const char* const at[2][2] = {{panel + first_, panel + (first_ ^ 16) + 128},
                                    {panel + (first_ ^ 32), panel + (first_ ^ 48) + 128}};
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const auto element = [&](int i) {
            return *reinterpret_cast<const float*>(at[r][i % 2] + (chunk * 16 + i / 2 * 8) * 128);
          };
          v[r][chunk] = make_float4(element(0), element(1), element(2), element(3));
        }
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk)
          v[r][chunk] = *reinterpret_cast<const float4*>(panel + first_ + r * 8 * 64 + chunk * Panel::kBoxBytes);
    }
  }

 private:
  int first_;
};

// Scales as consume() uses them. SplitInRegisters finds those of A's rows.
struct OnTheFlyScales : FixedScales {
  static constexpr bool kColMajorD = true;
  __device__ __forceinline__ static void publish() {
    hopper::wait_for_predecessor();
    hopper::launch_dependents();
    sync_consumers();
  }
};

// The main loop of on-the-fly products: while the tensor cores work on a step, the next one is split. Sums of hi * hi
// begin at 0 with each step, and those of the corrections with each stage.
template <class R, bool A_ALONG_M>
struct SplitInRegisters {
  using Shape = typename R::Shape;
  template <class ViewA, class ViewB, int N>
  __device__ __forceinline__ static void run(const Job& job, ProductShared& shared, const char* ring, const ViewA&,
                                             const ViewB& b, PipelineState<R::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&main)[N]) {
    static_assert(kOnTheFlySteps == 2);
    const FragmentReader<A_ALONG_M> reader(t);
    OnTheFlyRows rows;
    RawFragments raw;
    Fragments first, second;
    float correction[N];
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = 0;
    const auto read = [&](const PipelineState<R::kStages>& from) {
      hopper::wait(&shared.full[from.stage], from.parity);
      reader.read(ring + from.stage * R::kStageBytes, raw);
    };
    const auto multiply = [&](const Fragments& x, int step) {
      hopper::fence_products();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto product = [&](float(&d)[N], const uint32_t(&x)[4], int plane, bool adds) {
          const int planes = at.stage * R::kStageBytes + step * R::kPlaneBytes;
          hopper::multiply_registers<ViewB::kAlongMn>(d, x, b.plane(planes / 16, plane, i), adds);
        };
        product(main, x.hi[i], 0, i > 0);
        product(correction, x.hi[i], 1, step + i > 0);
        product(correction, x.lo[i], 0, true);
      }
      hopper::commit_products();
    };
    const auto wait = [&] {
      hopper::wait_products<0>();
      hopper::fence_registers(main);
      hopper::fence_registers(correction);
    };
    read(at);
    RowScales scales = rows.choose_scales(raw, 0, sum);
    rows.split(raw, 0, scales, first);
    const auto add = [&](bool corrections) {
      const float upper = rows.factor(scales, 0), lower = rows.factor(scales, 1);
      const auto product = [&](int e) {
        return corrections ? fmaf(correction[e], Fp16x3::kCorrection, main[e]) : main[e];
      };
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] = fmaf(product(e), e % 4 < 2 ? upper : lower, sum[e]);
      hopper::fence_registers(main);
      hopper::fence_registers(correction);
    };
    const auto multiply_step = [&](Fragments& x, int step, const auto& meanwhile) {
      multiply(x, step);
      meanwhile();
      wait();
      x.fence();
      add(step > 0);
    };
#pragma unroll 1
    for (int step = kOnTheFlySteps;; step += kOnTheFlySteps) {
      const bool more = step < steps.count;
      PipelineState<R::kStages> following = at;
      following.advance();
      multiply_step(first, 0, [&] {
        rows.split(raw, 1, scales, second);
        if (more) read(following);
      });
      RowScales next = {};
      multiply_step(second, 1, [&] {
        if (more) next = rows.choose_scales(raw, step, sum);
        if (more) rows.split(raw, 0, next, first);
      });
      __syncwarp();
      if (t % 32 == 0) hopper::arrive(&shared.empty[at.stage]);
      if (!more) break;
      at = following;
      scales = next;
    }
    at.advance();
    rows.finish(scales, sum, main);
    write_scales(job, shared, t, steps.parity, rows);
  }

 private:
  __device__ __forceinline__ static void write_scales(const Job& job, ProductShared& shared, int t, int parity,
                                                      const OnTheFlyRows& rows) {
    const TileIndex tile = shared.tiles[parity];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int in_tile = Shape::row(t, 2 * r), row = tile.row * Shape::kRows + in_tile;
      const RowScale row_scale = rows.row_scale(r);
      if (t % 4 == 0) shared.row_scales[parity][0][in_tile] = row_scale;
      uint32_t place = kNoPlace;
      if (__any_sync(~0u, threshold_of(row_scale) > 0)) place = find_largest(job, tile.batch, row, r, rows);
      if (t % 4 == 0 && row < job.a.size)
        job.a.row_stats[job.first_row(job.a, tile.batch) + row] = rows.row_stats(r, place);
    }
  }

  static __device__ __noinline__ uint32_t find_largest(const Job& job, int batch, int row, int r, OnTheFlyRows rows) {
    const int64_t depth = row < job.a.size ? job.depth(batch) : 0;
    return rows.place_of_largest(r, [&](int k) { return job.a.within(depth, batch, row, k); });
  }
};

template <class Shape, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1)
    split_onthefly(const __grid_constant__ Job job, const __grid_constant__ CUtensorMap map) {
  using R = OnTheFlyRing<Shape>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ ProductShared shared;
  if (threadIdx.x < 32) shared.init<R>(job.a.mapped ? 1 : 1 + kProducers, 1, 1);
  if (threadIdx.x == 0 && job.a.mapped) hopper::prefetch_map(&map);
  __syncthreads();

  if (threadIdx.x < kProducers) {
    hopper::release_registers<88>();
    OnTheFlyProducer<R, A_ALONG_M>{job, map, ring, shared}.run(TileScheduler(job));
  } else {
    hopper::acquire_registers<208>();
    float* staging = reinterpret_cast<float*>(ring + R::kBytes);
    using ViewA = PlaneView<A_ALONG_M, Shape::kRows>;  // of no planes: A's fragments are in registers
    consume<R, OnTheFlyScales, SplitInRegisters<R, A_ALONG_M>, ViewA, PlaneView<B_ALONG_N, R::kCols>>(
        job, ring, staging, shared, threadIdx.x - kProducers, TileScheduler(job));
  }
}

}  // namespace sgemm::split
