// The sizes of a kernel for one depth, and where planes lie.
//
// A plane of R rows: chunks of 64 columns, one after the other. In a chunk, each row takes 128 bytes, whose 16-byte
// pieces are swizzled for wgmma. A block's lo plane follows its hi plane. Q and K are read along the depth, V across
// it.
#pragma once
#include "../gpu/ptx/wgmma.cuh"
#include "../split/format/row_scale.cuh"
#include "attention.h"

namespace sgemm::attention {

template <int DEPTH>
struct Shape {
  static_assert(DEPTH == 32 || DEPTH == 64 || DEPTH == 96 || DEPTH == 128);
  static constexpr int kDepth = DEPTH, kChunks = (DEPTH + 63) / 64, kQuads = DEPTH / 4;
  static constexpr int kQueries = kQueriesOfTile, kKeys = keys_of_block(DEPTH);
  static constexpr int kPlane = kChunks * kKeys * 128, kQueryPlane = kChunks * kQueries * 128;
  static_assert(2 * kPlane == kBlockBytes);
  static constexpr int kWindow = 64, kWindows = kKeys / kWindow;  // keys whose P V one accumulator adds up
  static constexpr int kQueryBytes = 2 * kQueryPlane, kQueryBuffers = kChunks == 1 ? 2 : 1;
  // A block before its conversion: boxes of 64 rows and 32 columns.
  static constexpr int kRawColumns = DEPTH / 32, kRawBoxes = kKeys / 64 * kRawColumns, kRawBytes = kRawBoxes * 8192;
  static constexpr int kRawParts = kRawBoxes == 3 ? 3 : 2;  // are loaded one by one
  static constexpr int kSlots = (224 * 1024 - kQueryBuffers * kQueryBytes - kRawBytes) / kBlockBytes;
  static constexpr int kBytes = kQueryBuffers * kQueryBytes + kSlots * kBlockBytes + kRawBytes;
};

// wgmma descriptors of planes. Only the lower half of a descriptor changes with the address, in units of 16 bytes.
// `address` has to be uniform in a warp: the descriptors then stay in uniform registers.
template <int LEADING, int NEXT_16>
class PlaneView {
  uint64_t first_;

 public:
  __device__ __forceinline__ explicit PlaneView(uint32_t address)
      : first_(hopper::matrix_descriptor(__reduce_max_sync(~0u, address), LEADING, 1024)) {}
  // Returns the descriptor of the i-th 16 along k, `offset` bytes behind the first.
  __device__ __forceinline__ uint64_t at(uint32_t offset, uint32_t i) const {
    return first_ + (offset / 16 + i * NEXT_16);
  }
};
using AlongDepth = PlaneView<16, 2>;  // Q's and K's planes
template <class S>
using AcrossDepth = PlaneView<S::kKeys * 128, 128>;  // V's

// Rows are recomputed if their logits are sums times a larger factor than kMostFactor times the largest logit, which
// counts as 1 at least, and with a mask as kMostMasked at most; and without a mask if that logit is above kMostLogit.
constexpr float kMostFactor = 0x1p-16f, kMostMasked = 16, kMostLogit = 0x1p21f;

// A scale that says: recompute what depends on this row or block, because it holds Inf or NaN.
constexpr float kRecompute = __builtin_huge_valf();

// x = hi + lo for two neighbours. lo is not scaled up: its products share the accumulator of hi's.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& hi, uint32_t& lo) {
  const __half2 h = __floats2half2_rn(x, y);
  const float2 back = __half22float2(h);
  const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
  hi = *reinterpret_cast<const uint32_t*>(&h);
  lo = *reinterpret_cast<const uint32_t*>(&l);
}

// Writes four neighbours of a row, times `factor`, to both planes of `plane_bytes`, of `rows` rows.
__device__ __forceinline__ void store_quad(char* planes, int plane_bytes, int rows, int row, int quad, const float4& x,
                                           float factor) {
  char* const to = planes + quad / 16 * (rows * 128) + row * 128 + ((quad % 16 / 2 ^ row % 8) << 4) + quad % 2 * 8;
  uint2 hi, lo;
  split_pair(x.x * factor, x.y * factor, hi.x, lo.x);
  split_pair(x.z * factor, x.w * factor, hi.y, lo.y);
  *reinterpret_cast<uint2*>(to) = hi;
  *reinterpret_cast<uint2*>(to + plane_bytes) = lo;
}

__device__ __forceinline__ uint32_t largest_of(const float4& x) {
  return max(max(split::magnitude(x.x), split::magnitude(x.y)), max(split::magnitude(x.z), split::magnitude(x.w)));
}

// A problem, and how the kernels cut it up.
struct Job {
  Problem p;
  int all_heads, all_groups;  // of all batches
  int64_t padded_queries;     // of logsumexp
  int tiles_of_head, blocks_of_group;
  int tiles, blocks;                  // of all heads; of all groups
  char *k, *v;                        // planes
  float4 *k_scales, *v_scales;        // of each block: its scale, a power of two, in x; K's order of steps in y
  uint32_t *k_ready, *v_ready;        // of each block: 1 when its planes and scale are there
  int* claims;                        // number of blocks that thread blocks have begun to convert
  bool own;                           // each tile's blocks are converted by its thread block
  int heads_of_wave, groups_of_wave;  // whose tiles, or keys, are in flight at the same time
  float factor;                       // of sums
};

// Returns the factor of sums that are logits: |scale|, times log2(e) without a mask. The tensor cores truncate a sum of
// terms of both signs, on average by `truncated` units, which the factor makes good for.
inline float factor_of_sums(const Problem& p) {
  const double truncated = 0.4 + 0.28 * ceil_div(p.depth, 16), log2e = 1.4426950408889634;
  return static_cast<float>(std::fabs(p.scale) * (p.mask.kind == MaskKind::kNone ? log2e : 1) *
                            (1 + truncated * 0x1p-24));
}

}  // namespace sgemm::attention
