// Splitting pass and product in one kernel, where a pass of its own costs more than splitting a panel once a tile.
//
// Idea:   raw float32 panels come to shared memory several stages ahead (raw_panels.cuh); two warpgroups scale them and
//         split them into the ring of panels from which the consumers multiply.
// Bound:  neither side alone: consumers wait for wgmma, converters for their raw quads, in long dependent chains.
#pragma once
#include "online_scale.cuh"
#include "raw_panels.cuh"

namespace sgemm::split {

constexpr int kFusedThreads = kConverters + kConsumers;

template <class Shape>
using FusedRing = Ring<Fp16x3, Shape, RawRing<Shape>::kStages, true>;

// A thread's raw quads of a stage. All are read before anything is stored, which the compiler couldn't swap.
template <class Place>
using Quads = float4[Place::kQuads];
template <class Place>
__device__ __forceinline__ const float4& raw_quad(const float* raw, int j) {
  return *reinterpret_cast<const float4*>(raw + Place::floats_on(j));
}
template <class Place>
__device__ __forceinline__ void read_quads(Quads<Place>& v, const float* raw) {
#pragma unroll
  for (int j = 0; j < Place::kQuads; ++j) v[j] = raw_quad<Place>(raw, j);
}

// Their rows' factors: four that all quads share, or one a quad.
template <bool ALONG_MN, int ROWS>
struct QuadFactors {
  using Place = QuadPlace<ALONG_MN, ROWS>;
  static constexpr int kQuads = Place::kQuads;
  float4 f[ALONG_MN ? 1 : kQuads];

  __device__ __forceinline__ QuadFactors(const float* factors, const Place& at) {
    if constexpr (ALONG_MN)
      f[0] = *reinterpret_cast<const float4*>(factors + at.row);
    else
#pragma unroll
      for (int j = 0; j < kQuads; ++j) f[j].x = f[j].y = f[j].z = f[j].w = factors[at.row + at.rows_on(j)];
  }

  __device__ __forceinline__ void scale(Quads<Place>& v) const {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4& by = f[ALONG_MN ? 0 : j];
      v[j] = make_float4(v[j].x * by.x, v[j].y * by.y, v[j].z * by.z, v[j].w * by.w);
    }
  }
};

// `rows_left`: from the thread's first row on. Rows beyond the operand's end are zeros and not small elements.
template <bool ALONG_MN, int ROWS>
__device__ __forceinline__ Extremes split_stage(const Quads<QuadPlace<ALONG_MN, ROWS>>& v,
                                                const QuadPlace<ALONG_MN, ROWS>& at, char* panel, int rows_left) {
  Extremes extremes;
  constexpr int kFlip = at.k_on(1) % 8 * 16;  // of odd quads, whose k may turn the swizzle
  const PanelPlace place = place_in_panel<ALONG_MN, true, ROWS>(at.row, at.k);
#pragma unroll
  for (int j = 0; j < at.kQuads; ++j) {
    const int flip = j % 2 ? kFlip : 0, on = (at.rows_on(j) + at.k_on(j)) * 128;
    const QuadPlanes<Fp16x3> planes(v[j]);
    if (at.rows_on(j) < rows_left) {
      extremes.add(planes.xy[0]);
      extremes.add(planes.zw[0]);
    }
    planes.store(panel + (place.first ^ flip) + on, panel + (place.second ^ flip) + on);
  }
  return extremes;
}

// How many of a thread's elements were small, of each of its rows: four counts a word, a byte each.
template <class Place, bool ALONG_MN>
class SmallCounts {
 public:
  // Counts those of a step: `v` are scaled. `may_vanish`: the scale may have left nothing of some that are not zeros.
  __device__ __forceinline__ void add(const Quads<Place>& v, const float* raw, bool may_vanish, OnlineRows& rows,
                                      const Place& at) {
    Magnitudes found;
#pragma unroll
    for (int j = 0; j < Place::kQuads; ++j) found.take(v[j]);
    if (!__any_sync(~0u, may_vanish || found.some_small<Fp16x3>(0))) return;
#pragma unroll
    for (int j = 0; j < Place::kQuads; ++j) {
      const float4& x = raw_quad<Place>(raw, j);
      uint32_t& word = words_[ALONG_MN ? 0 : j / 4];
      word += is_small<Fp16x3>(x.x, v[j].x) << (ALONG_MN ? 0 : j % 4) * 8;
      word += is_small<Fp16x3>(x.y, v[j].y) << (ALONG_MN ? 1 : j % 4) * 8;
      word += is_small<Fp16x3>(x.z, v[j].z) << (ALONG_MN ? 2 : j % 4) * 8;
      word += is_small<Fp16x3>(x.w, v[j].w) << (ALONG_MN ? 3 : j % 4) * 8;
    }
    if (++stages_ == 255 / (ALONG_MN ? Place::kQuads : 4)) flush(rows, at);
  }

  // To those of the rows, which other threads share.
  __device__ __forceinline__ void flush(OnlineRows& rows, const Place& at) {
    if (stages_ == 0) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t count = words_[i / 4] >> i % 4 * 8 & 0xff;
      if (count) atomicAdd(&rows.small[at.row + (ALONG_MN ? i : at.rows_on(i))], count);
    }
    *this = {};
  }

 private:
  static constexpr int kRows = ALONG_MN ? 4 : Place::kQuads;
  uint32_t words_[kRows / 4] = {};
  int stages_ = 0;
};

// A thread of an operand's converters, 128 of them. Warps know nothing of each other.
template <class R, bool ALONG_MN, int ROWS>
struct Converter {
  using Place = QuadPlace<ALONG_MN, ROWS>;
  using Factors = QuadFactors<ALONG_MN, ROWS>;
  static constexpr int kQuads = Place::kQuads;
  using Quads = split::Quads<Place>;
  const Operand& x;
  OnlineShared<R::kStages>& shared;
  OnlineRows& rows;
  const int operand, t;
  const bool owner;  // of a row, that the thread looks after
  const int own;
  const Place at;
  uint32_t changed = 0;  // stages of the ring, by bits, whose factors of the warp's rows are not all 1
  SmallCounts<Place, ALONG_MN> small;
  __half2 largest;  // scaled magnitudes of the thread's elements, of even and of odd ones, rounded

  __device__ __forceinline__ Converter(OnlineShared<R::kStages>& shared, const Operand& x, int operand, int t)
      : x(x),
        shared(shared),
        rows(shared.rows[operand]),
        operand(operand),
        t(t),
        owner(t % 32 < Place::kOwnRows),
        own(Place::row_of(t / 32, t % Place::kOwnRows)),
        at(t) {
    for (int stage = 0; stage < R::kStages; ++stage) change_sums(stage, 1, false);
  }

  __device__ __forceinline__ void start_tile(int tile) {
    largest = __float2half2_rn(0);
    const bool inside = int64_t{tile} * ROWS + own < x.size;
    if (owner) {
      rows.exponent[own] = inside ? kNoScale : 0;
      rows.factor[own] = inside ? power_of_two(-kNoScale) : 1;
      rows.limit[own] = inside ? kAnyNonzero : kNothing;
      rows.small[own] = 0;
    }
    __syncwarp();
  }

  // Sums of earlier stages of the thread's row are to be multiplied by `factor`.
  __device__ __forceinline__ void change_sums(int stage, float factor, bool is_change) {
    if (owner) shared.change[stage][operand][own] = factor;
    if (t % 32 == 0) shared.changed[stage][operand][t / 32] = is_change;
    changed = is_change ? changed | 1u << stage : changed & ~(1u << stage);
  }

  __device__ __forceinline__ bool any_without_scale() const { return __any_sync(~0u, rows.limit[own] == kAnyNonzero); }

  // Scales for a step of v with an element that its row's scale is too fine for. Returns what that makes of the
  // thread's row's sums.
  __device__ __forceinline__ float choose_scales(const Quads& v, int step) const {
    if (ALONG_MN) {
      uint32_t of_row[4] = {};
#pragma unroll
      for (int j = 0; j < kQuads; ++j) take_largest(of_row, v[j]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // four lanes hold a row, or eight
#pragma unroll
        for (int o = 16; o >= Place::kAcross; o /= 2) of_row[i] = max(of_row[i], __shfl_xor_sync(~0u, of_row[i], o));
        if (t % 32 < Place::kAcross) rows.largest[at.row + i] = of_row[i];
      }
    } else {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {  // eight do
        uint32_t of_row = largest_magnitude(v[j]);
#pragma unroll
        for (int o = 4; o; o /= 2) of_row = max(of_row, __shfl_xor_sync(~0u, of_row, o));
        if (t % 8 == 0) rows.largest[at.row + at.rows_on(j)] = of_row;
      }
    }
    __syncwarp();
    const float change = owner ? rescale_row<Fp16x3>(rows, own, step) : 1;
    __syncwarp();
    return change;
  }

  // Whether the scale of an element's row doesn't do for it.
  __device__ __forceinline__ bool leaves_scale(const Quads& v) const {
    bool leaves = false;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const uint32_t* limits = &rows.limit[at.row + at.rows_on(j)];
      leaves |= magnitude(v[j].x) >= limits[0];
      leaves |= magnitude(v[j].y) >= limits[ALONG_MN ? 1 : 0];
      leaves |= magnitude(v[j].z) >= limits[ALONG_MN ? 2 : 0];
      leaves |= magnitude(v[j].w) >= limits[ALONG_MN ? 3 : 0];
    }
    return leaves;
  }

  // One step of k, to a stage. `first`: of its tile. Returns whether a row is without a scale still; `unscaled` is what
  // the step before returned. What is rare is short, and nothing is there twice: its instructions are not in the
  // caches.
  __device__ __forceinline__ bool convert(const float* raw, char* panel, int stage, int step, bool first, bool unscaled,
                                          int rows_left) {
    bool choose = first;
    Extremes extremes;
#pragma unroll 1
    for (;;) {
      Factors factors(rows.factor, at);  // before the quads, which wait for them
      Quads v;
      read_quads<Place>(v, raw);
      if (choose) {
        const float change = choose_scales(v, step);
        if (!first) change_sums(stage, change, true);
        unscaled = any_without_scale();
        factors = {rows.factor, at};
      }
      factors.scale(v);
      extremes = split_stage(v, at, panel, rows_left);
      const bool may_leave = extremes.too_large() || (unscaled && extremes.some_nonzero());
      if (!__any_sync(~0u, may_leave || extremes.small_or_zero())) break;
      if (!choose && __any_sync(~0u, may_leave && leaves_scale(v))) {
        choose = true;
        continue;
      }
      small.add(v, raw, rows.exponent[own] > 0, rows, at);
      break;
    }
    largest = __hmax2(largest, __hmin2(extremes.largest, __float2half2_rn(Fp16x3::kLimit)));  // without NaN
    if ((first || !choose) && changed >> stage & 1) change_sums(stage, 1, false);
    return unscaled;
  }
};

template <class R, bool ALONG_MN, int ROWS>
__device__ void convert_operand(const Job& job, int operand, char* ring, float* raw, uint64_t* raw_full,
                                OnlineShared<R::kStages>& shared, const TileScheduler& scheduler, int t) {
  const Operand& x = operand ? job.b : job.a;
  const int step0 = scheduler.step0, step1 = scheduler.step1;
  Converter<R, ALONG_MN, ROWS> converter(shared, x, operand, t);
  RawReader<ALONG_MN, ROWS, RawRing<typename R::Shape>::kStages> reader(job, operand, raw, raw_full, scheduler, t);

  PipelineState<R::kStages> at;
  PipelineState<2> words;
  for (int index = scheduler.first; index < job.tiles; index += scheduler.stride) {
    const TileIndex tile = tile_at(job, index);
    const int tile_of_operand = operand ? tile.col : tile.row;
    converter.start_tile(tile_of_operand);
    const int rows_left =
        static_cast<int>(min(x.size - int64_t{tile_of_operand} * ROWS - converter.at.row, int64_t{ROWS}));
    bool unscaled = true;
    for (int step = step0; step < step1; ++step) {
      const float* raw_panel = reader.wait();
      hopper::wait(&shared.empty[at.stage], at.parity ^ 1);
      char* panel = ring + at.stage * R::kStageBytes + operand * R::kBytesA;
      unscaled = converter.convert(raw_panel, panel, at.stage, step, step == step0, unscaled, rows_left);
      reader.release();
      hopper::fence_async_proxy();
      __syncwarp();
      if (t % 32 == 0) hopper::arrive(&shared.full[at.stage]);
      at.advance();
    }
    converter.small.flush(converter.rows, converter.at);
    __syncwarp();
    hopper::wait(&shared.words_empty[words.stage], words.parity ^ 1);
    if (converter.owner)
      shared.words[words.stage][operand][converter.own] = word_of_row<Fp16x3>(shared.rows[operand], converter.own);
    const float largest = fmaxf(__low2float(converter.largest), __high2float(converter.largest));
    const uint32_t of_warp = __reduce_max_sync(~0u, __float_as_uint(largest));
    if (t % 32 == 0) shared.largest[words.stage][operand][t / 32] = __uint_as_float(of_warp);
    if (threadIdx.x == 0) shared.tiles[words.stage] = tile;
    hopper::fence_async_proxy();  // a cluster's blocks copy it
    hopper::arrive(&shared.words_full[words.stage]);
    words.advance();
  }
}

// Corrections first, then hi * hi, added to the sum stage by stage: fewer registers, so that the converters have more.
// The tensor cores turn to the other warpgroup meanwhile.
template <class R>
struct AddStages {
  using F = Fp16x3;
  static constexpr bool kTellsMore = false;  // registers are short
  template <class ViewA, class ViewB, int N, class OnFull>
  __device__ __forceinline__ static void run(const Job&, OnlineShared<R::kStages>& shared, const char*, const ViewA& a,
                                             const ViewB& b, PipelineState<R::kStages>& at, int t,
                                             const TileSteps& steps, float (&sum)[N], float (&)[N],
                                             const OnFull& on_full) {
    float fresh[N];
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = 0;
    for (int step = 0; step < steps.count; ++step) {
      hopper::wait(&shared.full[at.stage], at.parity);
      on_full();
      const StageProducts<F, ViewA, ViewB, N> stage = {a, b, at.stage * (R::kStageBytes / 16)};
      hopper::fence_products();
      stage.corrections(fresh, false);
      hopper::commit_products();
      OnlineScales<R>::follow(shared, at.stage, t, sum);
      hopper::wait_products<0>();
      hopper::fence_registers(fresh);
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] = fmaf(fresh[e], F::kCorrection, sum[e]);
      hopper::fence_registers(fresh);
      hopper::fence_products();
      stage.main(fresh, false);
      hopper::commit_products();
      hopper::wait_products<0>();
      hopper::fence_registers(fresh);
      __syncwarp();  // all lanes have followed the scales
      if (t % 32 == 0) hopper::arrive(&shared.empty[at.stage]);
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += fresh[e];
      at.advance();
    }
  }
};

template <class Shape, bool A_ALONG_M, bool B_ALONG_N>
__global__ void __launch_bounds__(kFusedThreads, 1)
    split_fused(const __grid_constant__ Job job, const __grid_constant__ RawMaps maps) {
  using R = FusedRing<Shape>;
  using Raw = RawRing<Shape>;
  extern __shared__ __align__(1024) char ring[];  // the panels' ring, the raw panels, the sums on their way out
  __shared__ OnlineShared<R::kStages> shared;
  __shared__ PanelLoader<Raw, A_ALONG_M, B_ALONG_N> loader;
  if (threadIdx.x < 32) {
    if (threadIdx.x < 2 * Raw::kStages) hopper::init_barrier(&loader.full[0][threadIdx.x], 1);
    shared.template init<R>(kConverters / 32, kConverters, hopper::cluster_size());
  }
  if (threadIdx.x == kConverters) loader.start(job, maps, TileScheduler(job));  // meanwhile
  __syncthreads();
  hopper::launch_dependents();
  enter_cluster(hopper::cluster_size());
  hopper::wait_for_predecessor();

  float* raw = reinterpret_cast<float*>(ring + R::kBytes);
  if (threadIdx.x < kConverters) {
    hopper::release_registers<88>();
    const TileScheduler scheduler(job);
    const int operand = threadIdx.x / (kConverters / 2), t = threadIdx.x % (kConverters / 2);
    float* const raw_b = raw + Raw::kStages * Raw::kFloatsA;
    if constexpr (A_ALONG_M == B_ALONG_N && Shape::kRows == Shape::kCols)  // one code for both: caches of it are small
      convert_operand<R, A_ALONG_M, Shape::kRows>(job, operand, ring, operand ? raw_b : raw, loader.full[operand],
                                                  shared, scheduler, t);
    else if (operand == 0)
      convert_operand<R, A_ALONG_M, Shape::kRows>(job, 0, ring, raw, loader.full[0], shared, scheduler, t);
    else
      convert_operand<R, B_ALONG_N, Shape::kCols>(job, 1, ring, raw_b, loader.full[1], shared, scheduler, t);
  } else {
    hopper::acquire_registers<168>();
    const TileScheduler scheduler(job);
    const int t = threadIdx.x - kConverters;
    const auto load = [&] {
      if (hopper::opaque(t) == 0) loader.load(job, maps, raw, scheduler);
    };
#pragma unroll 1
    for (int i = 0; i < Raw::kStages; ++i) load();
    float* staging = raw + Raw::kFloats;
    consume<Fp16x3, R, OnlineScales<R>, AddStages<R>, A_ALONG_M, B_ALONG_N>(job, ring, staging, shared, t, scheduler,
                                                                            load);
  }
}

}  // namespace sgemm::split
