// The convert kernel: splits float32 operands into 16-bit planes, both operands in one launch, each element read once.
//
// Idea:   shared memory holds a row until its largest magnitude is known; then the row is scaled and split. One block
//         holds a row that lies along k; a cluster holds a strip of 32 columns. The planes have the layout that the
//         product needs in shared memory: swizzled panels of 128 rows x 32 of k, K-major or MN-major like the source.
//         So the product loads a panel with one plain bulk copy, and no layout is transposed.
// Bound:  memory: 4 bytes per element in, 4 (8 for three planes) out.
#pragma once
#include "../../gpu/hopper.cuh"
#include "../guard/guard.cuh"
#include "held_quads.cuh"
#include "nonzero_planes.cuh"

namespace sgemm::split {

struct ConvertScratch {
  uint32_t of_warp[32][kStrip];
  uint32_t of_block[kMaxCluster][kStrip];
  // Column statistics of each block's part of k (up to 1024); the cluster's first block gathers those of all blocks.
  // `places`: in the upper 16 bits the number of the column's small elements. In the lower 16 bits the position of the
  // column's largest element, counted from 1, or 0 if another part holds it. `units`: the sum of magnitudes, in units
  // of guard.cuh.
  alignas(16) uint32_t places[kMaxCluster][kStrip], units[kMaxCluster][kStrip];
  uint64_t maxima_here, guards_here;  // barriers for `of_block`, and for `places` and `units`
  bool lower[32];                     // for each warp: its elements need lower planes

  // Initialises the barriers, for strips. Call it before any copy starts, because the fence would wait for that.
  __device__ __forceinline__ void start(uint32_t blocks) {
    if (blocks == 1) return;
    if (threadIdx.x == 0) {
      const uint32_t bytes = blocks * kStrip * sizeof(uint32_t);
      for (uint64_t* barrier : {&maxima_here, &guards_here}) {
        hopper::init_barrier(barrier, 1);
        hopper::arrive_expecting(barrier, barrier == &guards_here ? 2 * bytes : bytes);
      }
      hopper::fence_barrier_init();
    }
    hopper::arrive_cluster();  // the other blocks may now write here
  }
};

// Reduces over the `threads` threads of a row, and returns the result to each. All threads of the block call it.
template <class Op>
__device__ __forceinline__ uint32_t reduce_row(uint32_t value, int threads, uint32_t* scratch, const Op& op) {
  const int warps = threads / 32;  // warps per row; 0 if a warp holds several rows
  for (int o = min(threads, 32) / 2; o; o /= 2) value = op(value, __shfl_xor_sync(~0u, value, o));
  if (warps > 1) {
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    const int first = static_cast<int>(threadIdx.x / 32) & -warps;
    for (int i = 0; i < warps; ++i) value = op(value, scratch[first + i]);
  }
  return value;
}
struct Larger {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const { return max(a, b); }
};

// Counts the small elements of a row, and writes the row statistics to `row_stats`. Each thread of the row has `count`
// quads in shared memory, from k = `q` on, `apart` apart. Ordinary data doesn't need this code. It is a separate
// function, because a short kernel waits for its instructions.
template <class F, int THREADS>
static __device__ __noinline__ uint32_t guard_row(const float4* quads, int count, int q, int apart, float factor,
                                                  uint32_t largest, int threads, uint32_t* scratch,
                                                  RowStats* row_stats) {
  uint32_t small = 0, place = 0, units = 0;
  const auto take = [&](float v, int q) {
    small += is_small<F>(v, v * factor);
    units += magnitude_units<F>(v * factor);
    if (magnitude(v) == largest) place = q;
  };
#pragma unroll 1
  for (int j = 0; j < count; ++j, q += apart) {
    const float4 v = quads[j * THREADS];
    take(v.x, q);
    take(v.y, q + 1);
    take(v.z, q + 2);
    take(v.w, q + 3);
  }
  const auto add = [](uint32_t a, uint32_t b) { return a + b; };
  small = reduce_row(small, threads, scratch, add);
  place = reduce_row(place, threads, scratch, Larger());
  units = reduce_row(units, threads, scratch, add);
  if ((threadIdx.x & (threads - 1)) == 0) *row_stats = pack_row_stats<F>(sum_of_units<F>(units), place);
  return small;
}

// Distance of the two planes of a pair, bytes.
template <class F>
__device__ __forceinline__ int planes_apart(const Operand& x) {
  return kPairs<F> == 1 && x.in_halves() ? kHalfPlaneBytes : 2 * kHalfPlaneBytes;
}

// Splits rows along k. `threads` neighbouring threads hold a row.
template <class F, int THREADS, bool FLOAT32>
__device__ __forceinline__ void split_rows(const Job& job, const Operand& x, const Place& at,
                                           const Held<THREADS, FLOAT32>& held, int threads, ConvertScratch& shared) {
  uint32_t* const scratch = &shared.of_warp[0][0];
  const int t = threadIdx.x & (threads - 1);
  Magnitudes own;
#pragma unroll 4
  for (int j = 0; j < held.count; ++j) own.take(held[j]);
  const uint32_t largest = reduce_row(own.largest, threads, scratch, Larger());
  const int exponent = row_exponent<F>(largest);
  const float factor = power_of_two(-exponent);

  const int step_q = at.q % kStep;
  const int place = place_in_panel<false>(at.r, x.by_lanes ? lane_place(step_q) : step_q, x.half_apart);
  const int pairs_apart = x.by_lanes ? (place ^ 16) - place : 4;  // the quad's two pairs of elements, bytes
  const int64_t apart = int64_t{at.apart / kStep} * kPairs<F> * kPanelBytes;
  uint32_t lower = 0;
  char* to = job.panel<F>(x, at.panel, at.q / kStep) + place;
#pragma unroll 2
  for (int j = 0; j < held.count; ++j, to += apart) {
    const float4 v = held[j];
    const QuadPlanes<F> planes(make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor));
    if (pairs_apart == 4)
      planes.store(to, planes_apart<F>(x));
    else
      planes.store_pairs(to, planes_apart<F>(x), pairs_apart);
    lower |= planes.lower();
  }
  shared.lower[threadIdx.x / 32] = __any_sync(~0u, lower);
  uint32_t small = 0;
  if (__syncthreads_or(own.some_small<F>(exponent)))
    small = guard_row<F, THREADS>(held.quads(), held.count, at.q, at.apart, factor, largest, threads, scratch,
                                  &x.row_stats[at.panel * kTile + at.r]);
  if (t == 0) x.row_scales[at.panel * kTile + at.r] = pack_row_scale<F>(largest, exponent, small);
  const int rows = __ffs(THREADS) - __ffs(threads);  // log2 of the block's rows: avoids a division at the kernel's end
  const int blocks = max(static_cast<int>(min(x.split, int64_t{kTile})) >> rows, 1);  // of the panel
  note_lower_planes<THREADS>(x, at.panel, at.r >> rows, blocks, kLowerEntries, shared.lower);
}

// Computes the column statistics of the block's part of a strip. The block's threads pass their quads of four columns.
// Warp 0 writes the counts of small elements and the positions of the largest elements to `to_places`, and the sums of
// magnitudes to `to_units`. Only warp 0 may read them afterwards. `of_warp` is scratch.
template <class F, int THREADS>
static __device__ __noinline__ void guard_strip(const float4* quads, int count, int apart, const uint32_t (&largest)[4],
                                                const float (&factor)[4], uint32_t (*of_warp)[kStrip],
                                                uint32_t (&to_places)[kStrip], uint32_t (&to_units)[kStrip]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = threadIdx.x % kStripQuads * 4;
  uint32_t counts[4] = {}, places[4] = {}, units[4] = {};
#pragma unroll 1
  for (int j = 0; j < count; ++j) {
    const float4 quad = quads[j * THREADS];
    const float v[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      counts[i] += is_small<F>(v[i], v[i] * factor[i]);
      units[i] += magnitude_units<F>(v[i] * factor[i]);
      if (magnitude(v[i]) == largest[i]) places[i] = threadIdx.x / kStripQuads + j * apart + 1;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int o = 16; o >= kStripQuads; o /= 2) {
      counts[i] += __shfl_xor_sync(~0u, counts[i], o);
      places[i] = max(places[i], __shfl_xor_sync(~0u, places[i], o));
      units[i] += __shfl_xor_sync(~0u, units[i], o);
    }
    if (lane < kStripQuads) of_warp[warp][column + i] = counts[i] << 16 | places[i];
  }
  __syncthreads();
  if (warp == 0) {
    uint32_t small = 0, place = 0;
#pragma unroll 4
    for (int w = 0; w < THREADS / 32; ++w) {
      small += of_warp[w][lane] >> 16;
      place = max(place, of_warp[w][lane] & 0xffff);
    }
    to_places[lane] = small << 16 | place;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (lane < kStripQuads) of_warp[warp][column + i] = units[i];
  __syncthreads();
  if (warp > 0) return;
  uint32_t sum = 0;
#pragma unroll 4
  for (int w = 0; w < THREADS / 32; ++w) sum += of_warp[w][lane];
  to_units[lane] = sum;
  __syncwarp();
}

// Splits a strip of columns: rows of the operand that are neighbours in memory. Each block of the cluster holds a part
// of k.
template <class F, int THREADS, bool FLOAT32>
__device__ __forceinline__ void split_strip(const Job& job, const Operand& x, const Place& at,
                                            const Held<THREADS, FLOAT32>& held, ConvertScratch& scratch) {
  const uint32_t rank = hopper::cluster_rank(), blocks = hopper::cluster_size();
  const int lane = threadIdx.x % 32, quad = threadIdx.x % kStripQuads;
  Magnitudes own[4];
#pragma unroll 4
  for (int j = 0; j < held.count; ++j) {
    const float4 v = held[j];
    own[0].take(v.x);
    own[1].take(v.y);
    own[2].take(v.z);
    own[3].take(v.w);
  }
  uint32_t largest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest[i] = own[i].largest;
    for (int o = 16; o >= kStripQuads; o /= 2) largest[i] = max(largest[i], __shfl_xor_sync(~0u, largest[i], o));
    if (lane < kStripQuads) scratch.of_warp[threadIdx.x / 32][quad * 4 + i] = largest[i];
  }
  __syncthreads();
  if (blocks > 1) {
    hopper::wait_cluster();
    const uint32_t place = hopper::shared_address(scratch.of_block[rank]);
    const uint32_t barrier = hopper::shared_address(&scratch.maxima_here);
    for (uint32_t i = threadIdx.x; i < kStrip * blocks; i += THREADS) {
      const uint32_t column = i % kStrip, to = i / kStrip;
      uint32_t of_block = 0;
#pragma unroll
      for (int w = 0; w < THREADS / 32; ++w) of_block = max(of_block, scratch.of_warp[w][column]);
      hopper::store_in_cluster(hopper::map_to_rank(place + column * sizeof(uint32_t), to), of_block,
                               hopper::map_to_rank(barrier, to));
    }
    hopper::wait(&scratch.maxima_here, 0);
  }
  const uint32_t(*maxima)[kStrip] = blocks > 1 ? scratch.of_block : scratch.of_warp;
  const int rows = blocks > 1 ? blocks : THREADS / 32;
#pragma unroll 4
  for (int b = 0; b < rows; ++b) {
    const uint4 row = *reinterpret_cast<const uint4*>(&maxima[b][quad * 4]);
    largest[0] = max(largest[0], row.x);
    largest[1] = max(largest[1], row.y);
    largest[2] = max(largest[2], row.z);
    largest[3] = max(largest[3], row.w);
  }
  float factor[4];
  bool some_small = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int exponent = row_exponent<F>(largest[i]);
    factor[i] = power_of_two(-exponent);
    some_small |= own[i].some_small<F>(exponent);
  }

  // A thread's quads are multiples of 8 of k apart, so that their swizzle is the first quad's. Offsets are from k = 0.
  const auto offset = [](uint32_t q) { return q / kStep * (kPairs<F> * kPanelBytes) + q % kStep * 128; };
  const int first_q = x.by_lanes ? lane_place(at.q) : at.q;
  char* const panel = job.panel<F>(x, at.panel, 0) - offset(first_q % kStep) +
                      place_in_panel<true>(at.r, first_q % kStep, x.half_apart);
  uint32_t lower = 0;
#pragma unroll 2
  for (int j = 0; j < held.count; ++j) {
    const float4 v = held[j];
    const QuadPlanes<F> planes(make_float4(v.x * factor[0], v.y * factor[1], v.z * factor[2], v.w * factor[3]));
    planes.store(panel + offset(first_q + j * kStripApart<THREADS>), planes_apart<F>(x));
    lower |= planes.lower();
  }
  scratch.lower[threadIdx.x / 32] = __any_sync(~0u, lower);
  // A block without small elements in its part of the strip skips the statistics, and writes an upper bound of the
  // sums. A small element in any column triggers them for all columns, so batch-invariant products always compute them.
  if (__syncthreads_or(some_small || (job.batch_invariant && blocks > 1))) {
    guard_strip<F, THREADS>(held.quads(), held.count, at.apart, largest, factor, scratch.of_warp, scratch.places[rank],
                            scratch.units[rank]);
  } else if (threadIdx.x < kStrip) {
    scratch.places[rank][lane] = 0;
    scratch.units[rank][lane] = kHeld * at.apart * kUnits;  // an upper bound
    __syncwarp();
  }
  constexpr int kOfStrip = kLowerEntries * kStrip / kTile;
  const int entry = at.r / kStrip * kOfStrip;
  note_lower_planes<THREADS>(x, at.panel, entry + static_cast<int>(rank), static_cast<int>(blocks), entry + kOfStrip,
                             scratch.lower);
  if (threadIdx.x >= kStripQuads) return;
  if (blocks > 1) {
    const uint32_t barrier = hopper::map_to_rank(hopper::shared_address(&scratch.guards_here), 0);
    for (const uint32_t* four : {&scratch.places[rank][quad * 4], &scratch.units[rank][quad * 4]})
      hopper::store_in_cluster(hopper::map_to_rank(hopper::shared_address(four), 0), four, barrier);
    if (rank != 0) return;
    hopper::wait(&scratch.guards_here, 0);
  }
  uint32_t small[4] = {}, units[4] = {}, places[4] = {kNoPlace, kNoPlace, kNoPlace, kNoPlace};
#pragma unroll 1
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint4 p = *reinterpret_cast<const uint4*>(&scratch.places[b][quad * 4]);
    const uint4 u = *reinterpret_cast<const uint4*>(&scratch.units[b][quad * 4]);
    const uint32_t of_columns[4] = {p.x, p.y, p.z, p.w}, more_units[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t place = of_columns[i] & 0xffff;
      small[i] += of_columns[i] >> 16;
      units[i] += more_units[i];
      if (place) places[i] = b * kHeld * at.apart + place - 1;
    }
  }
  const int64_t row = at.panel * kTile + at.r;
  RowScale row_scales[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    row_scales[i] = pack_row_scale<F>(largest[i], row_exponent<F>(largest[i]), small[i]);
    if (small[i]) x.row_stats[row + i] = pack_row_stats<F>(sum_of_units<F>(units[i]), places[i]);
  }
  *reinterpret_cast<uint4*>(&x.row_scales[row]) =
      make_uint4(row_scales[0], row_scales[1], row_scales[2], row_scales[3]);
}

// The convert kernel's grid: the blocks of b come first, those of a follow.
struct ConvertGrid {
  int64_t blocks_b;
  int64_t busy_a, busy_b;  // blocks with work; the rest fills the last cluster
  int row_threads;         // threads that hold a row along k; a power of two
};

// FLOAT32: all elements of both operands are float32, and the kernel has no code for 16-bit elements. A short kernel
// waits for its instructions.
template <class F, int THREADS, bool FLOAT32>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    split_convert(const __grid_constant__ Job job, const __grid_constant__ ConvertGrid grid) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ alignas(16) ConvertScratch scratch;
  const bool is_b = blockIdx.x < grid.blocks_b;
  const Operand& x = is_b ? job.b : job.a;
  const uint32_t block = is_b ? blockIdx.x : blockIdx.x - static_cast<uint32_t>(grid.blocks_b);
  if (block >= (is_b ? grid.busy_b : grid.busy_a)) return;

  // Avoid divisions, of 64 bits above all: they would take a large part of the time until the first read is issued.
  Place at;
  int64_t first;  // the thread's first row, among the rows of all matrices, of which each has whole panels
  if (x.along_k) {
    first = (int64_t{block} * THREADS + threadIdx.x) >> (__ffs(grid.row_threads) - 1);
    at.q = 4 * (threadIdx.x & (grid.row_threads - 1));
    at.apart = 4 * grid.row_threads;
  } else {
    first = int64_t{block / hopper::cluster_size()} * kStrip + 4 * (threadIdx.x % kStripQuads);
    at.apart = kStripApart<THREADS>;
    at.q = static_cast<int>(hopper::cluster_rank()) * kHeld * at.apart + threadIdx.x / kStripQuads;
  }
  at.panel = first / kTile;
  at.r = static_cast<int>(first % kTile);
  const uint32_t panel = static_cast<uint32_t>(at.panel), panels = static_cast<uint32_t>(x.panels);
  const int64_t batch = panel / panels, mn = int64_t{panel % panels} * kTile + at.r;
  const Held<THREADS, FLOAT32> held(reinterpret_cast<float4*>(memory) + threadIdx.x, x, batch, mn, at.q, at.apart,
                                    job.depth(batch), job.steps * kStep);
  if (!x.along_k) scratch.start(hopper::cluster_size());
  hopper::wait_for_predecessor();
  hopper::launch_dependents();
  held.read();
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i * job.parts < job.work_tiles - job.whole; i += THREADS) job.arrived[i] = 0;
  wait_copies<0>();
  __syncwarp();  // lanes may have copied each other's elements
  if (x.along_k)
    split_rows<F>(job, x, at, held, grid.row_threads, scratch);
  else
    split_strip<F>(job, x, at, held, scratch);
}

}  // namespace sgemm::split
