// An operand that is streamed once past the planes of the other, and split in registers on its way to the tensor cores.
//
// Idea:   a large operand that few tiles share need not be written to memory as planes. Its raw panels come to shared
//         memory as they lie in memory; each consumer warp reads 16 rows of them as the fragments of a wgmma whose A is
//         in registers, and scales (streamed_rows.cuh) and splits them while the tensor cores work on those before. The
//         other operand is small: a pass has split it.
// Block:  as split_product's, for tiles of 128 rows and 64 columns. The streamed operand is A; a problem in which it is
//         B is solved transposed.
// Start:  the first raw panels are on their way while the pass still runs, for it writes none of them.
// Order:  the places of a fragment's elements along k are dealt out as they can be read best. Where A lies along k, a
//         lane reads four neighbours at once, and the pass has written B's planes in that order (Operand::by_lanes).
// Bound:  memory, and the consumers: about 14 instructions an element, of which each waits for the one before.
#pragma once
#include "../gpu/ptx/async_copy.cuh"
#include "../gpu/tensor_map.cuh"
#include "cluster_words.cuh"
#include "product.cuh"
#include "streamed_rows.cuh"

namespace sgemm::split {

constexpr int kProducers = 128;  // threads; one of them, where there is a tensor map

// Stages of kStreamedSteps steps, raw panels of A and planes of B, one behind the other.
template <class SHAPE>
struct StreamedRing {
  using Shape = SHAPE;
  static constexpr bool kInterleaved = false;
  static constexpr int kStages = 4;
  static constexpr int kRawBytes = kTile * kStep * static_cast<int>(sizeof(float)),
                       kPlaneBytes = Shape::kCols * kRowBytes;
  static constexpr int kBytesA = kStreamedSteps * kRawBytes, kBytesB = kStreamedSteps * kPlaneBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kBytes = kStages * kStageBytes;
};

// The raw panels of a stage, 128 rows and 64 of k. Along k: boxes of 16 of k, in which a row holds 64 bytes. Else boxes
// of 32 rows, in which each of k holds 128 bytes, swizzled.
template <bool ALONG_M>
struct RawPanel {
  static constexpr int kDepth = kStreamedSteps * kStep;
  static constexpr int kBoxes = 4, kBoxRows = ALONG_M ? 32 : kTile, kBoxDepth = ALONG_M ? kDepth : 16;
  static constexpr int kBoxBytes = kBoxRows * kBoxDepth * static_cast<int>(sizeof(float));
  static_assert(kBoxes * kBoxBytes == kTile * kDepth * sizeof(float));

  __device__ __forceinline__ static int place(int row, int k) {
    if (ALONG_M) return row / 32 * kBoxBytes + k * 128 + ((row % 32 / 4 ^ k % 8) << 4) + row % 4 * 4;
    return k / 16 * kBoxBytes + row * 64 + k % 16 * 4;
  }
};

// Where a consumer thread finds its elements of a stage.
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
      // Eight rows on, and with the next of k, another chunk of 16 bytes.
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

// By one thread with a tensor map, else by all producers, element by element.
template <class R, bool A_ALONG_M>
struct StreamedProducer {
  using Panel = RawPanel<A_ALONG_M>;
  using Shape = typename R::Shape;
  const Job& job;
  const CUtensorMap& map;
  char* const ring;
  ProductShared& shared;
  const bool mapped, leader;

  __device__ __forceinline__ void run(const TileScheduler& scheduler) const {
    PipelineState<R::kStages> at;
    PipelineState<2> words;
    for (int index = scheduler.first; index < job.work_tiles; index += scheduler.stride) {
      const WorkTile work = scheduler.work_tile(job, index);
      const TileIndex tile = tile_at(job, work.tile);
      PanelSource<Fp16x3, Shape::kCols> b(job, job.b, tile.batch, tile.col, work.step0);
      uint64_t* const words_full = &shared.words_full[words.stage];
      constexpr int kWordsB = Shape::kCols * sizeof(uint32_t);
      if (leader) {
        hopper::wait(&shared.words_empty[words.stage], words.parity ^ 1);
        shared.tiles[words.stage] = tile;
        hopper::arrive_expecting(words_full, kWordsB);
      }
      const int stages = (work.step1 - work.step0) / kStreamedSteps;
      const int ahead = index == scheduler.first ? min(R::kStages, stages) : 0;  // of the pass
      const auto copy_b = [&](int stage) {
#pragma unroll
        for (int i = 0; i < kStreamedSteps; ++i)
          b.copy_next(true, ring + stage * R::kStageBytes + R::kBytesA + i * R::kPlaneBytes, &shared.full[stage]);
      };
      for (int i = 0; i < stages; ++i) {
        hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
        if (leader) hopper::arrive_expecting(&shared.full[at.stage], (mapped ? R::kBytesA : 0) + R::kBytesB);
        copy_a(tile, work.step0 + i * kStreamedSteps, ring + at.stage * R::kStageBytes, &shared.full[at.stage]);
        if (leader && i >= ahead) copy_b(at.stage);
        if (leader && i + 1 == max(ahead, 1)) {
          hopper::wait_for_predecessor();
          for (int i = 0; i < ahead; ++i) copy_b(i);
          hopper::copy_bulk(shared.words[words.stage][1], b.words, kWordsB, words_full);
        }
        at.advance();
      }
      words.advance();
    }
  }

 private:
  __device__ __forceinline__ void copy_a(const TileIndex& tile, int step, char* panel, uint64_t* full) const {
    const Operand& x = job.a;
    if (mapped) {
      const hopper::MapPlace place = hopper::place_in_map(x.batch, x.count, job.k_slice ? 0 : tile.batch);
      const int row = tile.row * Shape::kRows, k = static_cast<int>(tile.batch * job.k_slice) + step * kStep;
#pragma unroll
      for (int i = 0; i < Panel::kBoxes; ++i)
        hopper::copy_tensor(panel + i * Panel::kBoxBytes, &map, A_ALONG_M ? row + i * Panel::kBoxRows : k + i * 16,
                            A_ALONG_M ? k : row, place.matrix, place.group, full);
      return;
    }
    const float* const from = x.data + x.batch.offset(tile.batch);
    const int64_t row0 = int64_t{tile.row} * Shape::kRows, k0 = int64_t{step} * kStep, depth = job.depth(tile.batch);
#pragma unroll 4
    for (int i = threadIdx.x; i < kTile * Panel::kDepth; i += kProducers) {
      const int row = A_ALONG_M ? i % kTile : i / Panel::kDepth, k = A_ALONG_M ? i / kTile : i % Panel::kDepth;
      const bool inside = row0 + row < x.size && k0 + k < depth;
      copy_async<4>(reinterpret_cast<float*>(panel + Panel::place(row, k)),
                    inside ? from + (row0 + row) * x.stride + (k0 + k) * x.k_stride : x.data, inside ? 4 : 0);
    }
    arrive_with_copies(full);
  }

  // Arrives when the thread's copies have.
  __device__ __forceinline__ static void arrive_with_copies(uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(hopper::shared_address(barrier))
                 : "memory");
  }
};

// What consume() asks of scales, those of A's rows found by SplitInRegisters.
template <class R>
struct StreamedScales {
  using Shape = typename R::Shape;
  using Shared = FoundScales;
  static constexpr bool kKnown = false, kDown = true, kPlainFirst = false;
  __device__ __forceinline__ static void tighten(Shared&, int, int) {
    hopper::wait_for_predecessor();
    hopper::fence_async_proxy();  // a cluster's blocks copy the words
    sync_consumers();
  }
  __device__ __forceinline__ static void agree(Shared& shared, int stage, int t, uint32_t rank, uint32_t blocks,
                                               float (&sum)[Shape::kSums]) {
    const auto& change = shared.cluster_words.agree(shared.words[stage], t, rank, blocks, true);
    multiply_sums<Shape>(change, true, false, t, sum);
  }

  // Parts are added up as if their rows had no scales. Beyond what a float32 sum then holds, a row's elements are
  // certified where they are far enough from that, or not at all.
  __device__ __forceinline__ static bool fix_up(const Job& job, Shared& shared, int stage, const WorkTile& work,
                                                float (&sum)[Shape::kSums], int t) {
    uint32_t(&words)[kTile] = shared.words[stage][0];
    uint32_t* const of_parts = job.part_words + int64_t{work.tile - job.whole} * job.parts * kTile;
    if (t < kTile) __stcg(of_parts + work.part * kTile + t, words[t]);
    scale_rows(words, 1, t, sum);
    if (!split::fix_up(job, work, sum, shared.last, t)) return false;
    if (t < kTile) {
      const uint32_t word = word_of_parts(job.parts, [&](uint32_t i) { return __ldcg(of_parts + i * kTile + t); });
      words[t] = without_scale(word);
    }
    sync_consumers();
    scale_rows(words, -1, t, sum);
    return true;
  }

  __device__ __forceinline__ static auto words(const Shared& shared, int stage, uint32_t blocks) -> const
      uint32_t (&)[2][kTile] {
    return shared.words_of(stage, blocks);
  }

 private:
  // Sums of 2^13 terms below 2^30 stay finite with scales up to the coarsest. They are multiples of 2^-99, which lose
  // nothing down to the finest; below, each of up to 2^8 parts is off by 2^-150: less than 2^-30 of 2^-112.
  static constexpr int kFinest = -50, kCoarsest = 60;

  __device__ __forceinline__ static uint32_t without_scale(uint32_t word) {
    const int exponent = word_exponent(word);
    const float threshold = word_threshold(word);
    if (!is_finite_row(word) || !(threshold >= 0) || (exponent >= kFinest && exponent <= kCoarsest)) return word;
    if (exponent > kCoarsest) return kUncertified | (word & 0xff);
    return with_step(with_threshold(word, threshold + power_of_two(-112 - exponent)), word_step(word));
  }

  // By their scales, or their inverse.
  __device__ __forceinline__ static void scale_rows(const uint32_t (&words)[kTile], int sign, int t,
                                                    float (&sum)[Shape::kSums]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) scale_row(r, power_of_two(sign * word_exponent(words[Shape::row(t, 2 * r)])), sum);
  }
};

// While the tensor cores work on a step, the next one is split. Sums of hi * hi begin anew with each step, those of the
// corrections with each stage.
template <class R, bool A_ALONG_M>
struct SplitInRegisters {
  static constexpr bool kTellsMore = true;
  template <class ViewA, class ViewB, int N, class OnFull>
  __device__ __forceinline__ static void run(const Job&, FoundScales& shared, const char* ring, const ViewA&,
                                             const ViewB& b, PipelineState<R::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&main)[N], const OnFull&) {
    static_assert(kStreamedSteps == 2);
    const FragmentReader<A_ALONG_M> reader(t);
    StreamedRows rows;
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
    RowScales scales = rows.choose_scales(raw, steps.first, sum);
    rows.split(raw, 0, scales, first);
    const auto add = [&](bool corrections) {
      const float upper = rows.factor(scales, 0), lower = rows.factor(scales, 1);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const float product = corrections ? fmaf(correction[e], Fp16x3::kCorrection, main[e]) : main[e];
        sum[e] = fmaf(product, e % 4 < 2 ? upper : lower, sum[e]);
      }
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
    for (int step = kStreamedSteps;; step += kStreamedSteps) {
      const bool more = step < steps.count;
      PipelineState<R::kStages> following = at;
      following.advance();
      multiply_step(first, 0, [&] {
        rows.split(raw, 1, scales, second);
        if (more) read(following);
      });
      RowScales next = {};
      multiply_step(second, 1, [&] {
        if (more) next = rows.choose_scales(raw, steps.first + step, sum);
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
    if (t % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) shared.words[steps.parity][0][R::Shape::row(t, 2 * r)] = rows.word(r);
    }
  }
};

template <class Shape, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kProductThreads, 1)
    split_streamed(const __grid_constant__ Job job, const __grid_constant__ CUtensorMap map) {
  using R = StreamedRing<Shape>;
  extern __shared__ __align__(1024) char ring[];
  __shared__ FoundScales shared;
  const bool mapped = job.a.mapped;
  if (threadIdx.x < 32) shared.init<R>(mapped ? 1 : 1 + kProducers, 1, hopper::cluster_size());
  if (threadIdx.x == 0 && mapped) hopper::prefetch_map(&map);
  __syncthreads();
  hopper::launch_dependents();
  enter_cluster(hopper::cluster_size());

  if (threadIdx.x < kProducers) {
    hopper::release_registers<88>();
    if (threadIdx.x == 0 || !mapped)
      StreamedProducer<R, A_ALONG_M>{job, map, ring, shared, mapped, threadIdx.x == 0}.run(TileScheduler(job));
  } else {
    hopper::acquire_registers<208>();
    float* staging = reinterpret_cast<float*>(ring + R::kBytes);
    consume<Fp16x3, R, StreamedScales<R>, SplitInRegisters<R, A_ALONG_M>, false, B_ALONG_N>(
        job, ring, staging, shared, threadIdx.x - kProducers, TileScheduler(job), [] {});
  }
}

}  // namespace sgemm::split
