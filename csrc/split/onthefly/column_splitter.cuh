// Splits the small operand of an on-the-fly product in the producers, where a convert kernel would cost more.
//
// Idea:   the operand's raw panels are copied to where its planes will be. The producers read a stage's panel, agree on
//         the largest element of each column, and write the planes over the panel.
// Scales: each 64 of k may have a scale of their own, as in onthefly_rows.cuh. The sum of their products is then
//         multiplied by a power of two when it is added. A column's sums are relative to its reference, which is a
//         little coarser than its largest element, so that it rarely has to change. A stage that needs a nearly as
//         coarse scale gets the reference itself, so most stages need no such factor.
#pragma once
#include "raw_panel.cuh"
#include "split_rows.cuh"

namespace sgemm::split {

constexpr int kHeadroom = 1, kNear = 3;  // binades

// Flags: some changes, or some factors, are other than 1.
enum News : uint32_t { kChanges = 1, kFactors = 2 };

// Shared memory in which producers write the scales of a stage's and of a tile's columns for the consumers.
template <int STAGES, int COLS>
struct SplitColumns {
  uint64_t raw_full[STAGES], ready[STAGES];          // barriers
  alignas(4) uint8_t news[STAGES][kProducers / 32];  // News of the columns of each warp of producers
  alignas(16) float change[STAGES][COLS];            // factors of the sums of earlier stages
  alignas(16) float factor[STAGES][COLS];            // factors of this stage's products, at most 1
  alignas(16) float last[2][COLS];                   // (tile's parity): factors from the reference to the packed scale
  // For the producers alone, of this stage and of the next: the largest magnitudes found by each warp, and references.
  alignas(16) uint32_t largest[2][kProducers / 32][COLS];
  alignas(16) int reference[2][COLS];
  uint32_t small[2][COLS];  // numbers of small elements, of this stage and of the previous one

  // Called by one warp. `writers`: arrivals that complete a raw panel.
  __device__ __forceinline__ void init(int writers) {
    const int i = threadIdx.x % 32;
    if (i < STAGES) {
      hopper::init_barrier(&raw_full[i], writers);
      hopper::init_barrier(&ready[i], kProducers);
    }
    hopper::fence_barrier_init();
  }
};

// Returns the exponent that 64 of a column's k with this largest magnitude need. It is kNoScale for zeros, and for Inf
// and NaN: columns with Inf are redone, and sums with NaN are NaN at any scale.
__device__ __forceinline__ int wanted_exponent(uint32_t largest) {
  return largest == 0 || largest >= kInfinity ? kNoScale : row_exponent<Fp16x3>(largest);
}
__device__ __forceinline__ int next_reference(int wanted, int reference) {
  return wanted > reference ? wanted + kHeadroom : reference;
}
// Returns the exponent of 64 of k that need `wanted`; `reference` is the column's before them. If these 64 need no
// scale, they get the next reference, so that their factor is 1.
__device__ __forceinline__ int step_exponent(int wanted, int reference) {
  const int next = next_reference(wanted, reference);
  if (wanted >= next - kNear || wanted == kNoScale) return next;
  return max(wanted, next - kSpread);
}

// Binades by which a column's reference may become coarser without a count. Sums are multiples of 2^-59, the product of
// the planes' last bits, times 2^-kSpread for the row and for the column: 2^-99. So 15 binades leave sums exact. Beyond
// that, earlier sums are off by a few 2^-149, or by 2^-83 at a change of more than 126 binades. Such an error is
// negligible for a product that passes the test for a small element, so the column counts one more element.
constexpr int kMostCoarser = 15;

// A column's scales in a tile, kept by one thread, or by two threads with equal values.
struct ColumnScales {
  int reference = kNoScale, first = kNoScale, coarsest = kNoScale;
  int step = -1;    // the step that set `coarsest`; -1 for zeros alone
  float small = 0;  // weighted count for pack_found_scale(), relative to the reference

  // Adds 64 of k with this largest magnitude, whose first step is `at`. Returns the factor of the sums of earlier
  // steps.
  __device__ __forceinline__ float take(uint32_t largest, int at) {
    const int wanted = wanted_exponent(largest);
    float change = 1;
    if (largest >= kInfinity) small += __uint_as_float(largest);
    if (wanted > reference) {
      const int to = next_reference(wanted, reference);
      if (step < 0)
        first = to;
      else
        change = power_of_two(max(reference - to, -126));
      small = __fmaf_ru(small, change, to - first > kMostCoarser);
      reference = to;
    }
    if (largest != 0 && (step < 0 || wanted > coarsest)) {
      coarsest = wanted;
      step = at;
    }
    return change;
  }
  // Returns the factor of a step's products in the sums.
  __device__ __forceinline__ float factor(int exponent) const { return power_of_two(max(exponent - reference, -126)); }
  __device__ __forceinline__ void count_small(uint32_t count, int exponent) {
    small = __fmaf_ru(static_cast<float>(count), factor(exponent), small);
  }
  __device__ __forceinline__ float to_coarsest() const { return power_of_two(reference - coarsest); }
  __device__ __forceinline__ RowScale row_scale() const {
    return pack_found_scale(step >= 0, coarsest, __fmul_ru(small, to_coarsest()), step);
  }
};

// Splits columns; each thread of the producers has one splitter.
template <bool ALONG_N, bool BY_LANES, int STAGES, int COLS>
class ColumnSplitter {
 public:
  using Shared = SplitColumns<STAGES, COLS>;
  using Raw = RawPanel<ALONG_N, COLS>;

  __device__ __forceinline__ explicit ColumnSplitter(Shared& shared) : shared_(shared) {}

  __device__ __forceinline__ void start_tile() {
    scales_ = {};
    if (!is_owner()) return;
    const int col = own_column();
    shared_.small[0][col] = shared_.small[1][col] = 0;  // visible after the first stage's barrier
    shared_.reference[turn_][col] = kNoScale;
  }

  // Splits the stage's panel, which begins at this step of k.
  __device__ __forceinline__ void split(char* panel, int stage, int step) {
    const Place at(hopper::opaque(threadIdx.x) & (kProducers - 1));  // computed each time, because registers are few
    float4 v[kQuads];
#pragma unroll
    for (int j = 0; j < kQuads; ++j) v[j] = *reinterpret_cast<const float4*>(panel + at.raw_of(j));
    float most[kColumns] = {}, least[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) least[i] = INFINITY;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float x = fabsf(v[j].x), y = fabsf(v[j].y), z = fabsf(v[j].z), w = fabsf(v[j].w);
      if constexpr (ALONG_N) {
        most[0] = larger_or_nan(most[0], x);
        most[1] = larger_or_nan(most[1], y);
        most[2] = larger_or_nan(most[2], z);
        most[3] = larger_or_nan(most[3], w);
        least[0] = fminf(least[0], x);
        least[1] = fminf(least[1], y);
        least[2] = fminf(least[2], z);
        least[3] = fminf(least[3], w);
      } else {
        most[0] = larger_or_nan(most[0], larger_or_nan(larger_or_nan(x, y), larger_or_nan(z, w)));
        least[0] = fminf(least[0], fminf(fminf(x, y), fminf(z, w)));
      }
    }
    uint32_t largest[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      largest[i] = __float_as_uint(most[i]);
      largest[i] = max(largest[i], __shfl_xor_sync(~0u, largest[i], ALONG_N ? COLS / 4 : 1));
    }
    int exponent[kColumns];
    if constexpr (ALONG_N) {
      if (at.t % 32 < COLS / 4)
        *reinterpret_cast<uint4*>(&shared_.largest[turn_][at.t / 32][at.col]) =
            make_uint4(largest[0], largest[1], largest[2], largest[3]);
      sync();  // all maxima are stored, and all of the panel has been read
      const int4 reference = *reinterpret_cast<const int4*>(&shared_.reference[turn_][at.col]);
      const int references[4] = {reference.x, reference.y, reference.z, reference.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) exponent[i] = step_exponent(wanted_exponent(largest_of(at.col + i)), references[i]);
    } else {
      exponent[0] = step_exponent(wanted_exponent(largest[0]), scales_.reference);
      __syncwarp();  // a column's planes overwrite its own elements only
    }
    bool some_small = false, nonzero = false;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      some_small |= least[i] < Fp16x3::kSmall * power_of_two(exponent[i]) && largest[i] != 0;
      nonzero |= largest[i] != 0;
    }
    if (some_small) count_small(v, exponent, at.col);
    if (ALONG_N || nonzero) write_planes(v, exponent, panel, at);  // zeros are zeros in either format
    record_largest(ALONG_N && is_owner() ? largest_of(own_column()) : largest[0], stage, step);
    turn_ ^= 1;
  }

  // Writes the tile's column scales. Precondition: all of the tile's stages have been split.
  __device__ __forceinline__ void finish_tile(RowScale (&row_scales)[kTile], int parity) {
    sync();  // all small elements have been counted
    if (!is_owner()) return;
    const int col = own_column();
    take_count(col);
    row_scales[col] = scales_.row_scale();
    shared_.last[parity][col] = scales_.to_coarsest();
  }

 private:
  static constexpr int kQuads = Raw::kBytes / 16 / kProducers, kColumns = ALONG_N ? 4 : 1;  // per thread
  static constexpr uint32_t kPlaneBytes = COLS * kRowBytes / 2;
  static_assert(kQuads == 8);

  __device__ __forceinline__ static void sync() {
    __syncwarp();
    hopper::sync_some(2, kProducers);
  }

  // The thread that owns a column's scale, and the column's index.
  __device__ __forceinline__ static bool is_owner() { return ALONG_N ? threadIdx.x < COLS : threadIdx.x % 2 == 0; }
  __device__ __forceinline__ static int own_column() { return ALONG_N ? threadIdx.x : threadIdx.x / 2; }

  // Offsets of a thread's quads, bytes: in the raw panel, and in the planes, of which a step's first holds kPlaneBytes.
  // Along k a thread has half of a column, and quads are permuted within 16 of k, so that threads that read or write at
  // once use different banks. Therefore an offset along k is applied to a quad's place by an exclusive or.
  struct Place {
    static constexpr uint32_t kApart = 4 * kProducers / COLS;  // distance of a thread's quads along k
    static_assert(!ALONG_N || kApart == 8);
    uint32_t t, col, raw, plane;

    __device__ __forceinline__ explicit Place(uint32_t t) : t(t), col(ALONG_N ? t % (COLS / 4) * 4 : t / 2) {
      const uint32_t quad = (t / 4 ^ t % 2 * 2 ^ t / 16) % 4;
      const uint32_t in_step = ALONG_N ? t / (COLS / 4) : quad * 4, step = ALONG_N ? 0 : t % 2;
      raw = Raw::place(col, step * kStep + in_step);
      plane = step * 2 * kPlaneBytes + place_in_panel<ALONG_N>(col, BY_LANES ? lane_place(in_step) : in_step);
    }
    __device__ __forceinline__ uint32_t raw_of(int j) const {
      return ALONG_N ? raw + j * kApart * 128 : (raw ^ j % 4 * 16) + j / 4 * Raw::kBoxBytes;
    }
    __device__ __forceinline__ uint32_t plane_of(int j) const {
      if (!ALONG_N) return plane ^ j / 4 * 32 ^ j % 4 * (BY_LANES ? 4 : 8);
      const uint32_t k = j * kApart % kStep, step = j * kApart / kStep;
      // lane_place() of every second 8 of k is 4 larger, and the swizzle depends on its last 3 bits.
      return (BY_LANES ? (plane ^ j % 2 * 64) + lane_place(k) * 128 : plane + k * 128) + step * 2 * kPlaneBytes;
    }
  };

  // Returns which of the thread's columns holds a quad's i-th element.
  __device__ __forceinline__ static constexpr int of(int i) { return ALONG_N ? i : 0; }

  __device__ __forceinline__ uint32_t largest_of(int col) const {
    uint32_t largest = shared_.largest[turn_][0][col];
#pragma unroll
    for (int i = 1; i < kProducers / 32; ++i) largest = max(largest, shared_.largest[turn_][i][col]);
    return largest;
  }

  __device__ __forceinline__ void count_small(const float4 (&v)[kQuads], const int (&exponent)[kColumns],
                                              int col) const {
    uint32_t count[kColumns] = {};
    if constexpr (ALONG_N) {
      const SmallElements small[4] = {SmallElements(exponent[0]), SmallElements(exponent[1]),
                                      SmallElements(exponent[2]), SmallElements(exponent[3])};
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        count[0] += small[0].holds(v[j].x);
        count[1] += small[1].holds(v[j].y);
        count[2] += small[2].holds(v[j].z);
        count[3] += small[3].holds(v[j].w);
      }
    } else {
      const SmallElements small(exponent[0]);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) count[0] += small.count(v[j]);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if (count[i]) atomicAdd(&shared_.small[turn_][col + i], count[i]);
  }

  __device__ __forceinline__ static void write_planes(const float4 (&v)[kQuads], const int (&exponent)[kColumns],
                                                      char* panel, const Place& at) {
    float by[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) by[i] = power_of_two(-exponent[i]);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      char* const first = panel + at.plane_of(j);
      const QuadPlanes<Fp16x3> planes(
          make_float4(v[j].x * by[0], v[j].y * by[of(1)], v[j].z * by[of(2)], v[j].w * by[of(3)]));
      if (!ALONG_N && BY_LANES)  // the second pair lies in the next chunk, with which the swizzle may have swapped it
        planes.store_pairs(first, kPlaneBytes, (at.plane_of(j) ^ 16) - at.plane_of(j));
      else
        planes.store(first, kPlaneBytes);
    }
  }

  // Adds the previous stage's small elements of an owner's column, which all threads have counted by now.
  __device__ __forceinline__ void take_count(int col) {
    const uint32_t count = shared_.small[turn_ ^ 1][col];
    if (count == 0) return;
    scales_.count_small(count, exponent_);
    shared_.small[turn_ ^ 1][col] = 0;
  }

  // Writes the scales of an owner's column for the consumers. `largest`: the column's largest magnitude in this stage.
  __device__ __forceinline__ void record_largest(uint32_t largest, int stage, int step) {
    const bool owner = is_owner();
    if (owner) take_count(own_column());
    exponent_ = step_exponent(wanted_exponent(largest), scales_.reference);
    const float change = scales_.take(largest, step);
    const float factor = scales_.factor(exponent_);
    if (owner) {
      const int col = own_column();
      shared_.factor[stage][col] = factor;
      shared_.change[stage][col] = change;
      if (ALONG_N) shared_.reference[turn_ ^ 1][col] = scales_.reference;
    }
    const bool changes = __any_sync(~0u, owner && change != 1), factors = __any_sync(~0u, owner && factor != 1);
    if (threadIdx.x % 32 == 0)
      shared_.news[stage][threadIdx.x / 32] = (changes ? kChanges : 0) | (factors ? kFactors : 0);
  }

  Shared& shared_;
  ColumnScales scales_;  // scales of an owner's column
  int exponent_ = 0;     // exponent of that column in its last stage
  int turn_ = 0;
};

}  // namespace sgemm::split
