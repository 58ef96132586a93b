// The sizes of the backward kernels for one depth, and what they know of a block of 64 rows.
//
// Q, K, V and dO lie in blocks of 64 rows: a hi plane, then a lo plane (../shape.cuh). One set of planes serves all
// products: scores read them along the depth, sums along the rows.
#pragma once
#include "../../gpu/ptx/min_max.cuh"
#include "../shape.cuh"
#include "gradients.h"

namespace sgemm::attention::backward {

template <int DEPTH>
struct Shape {
  static_assert(DEPTH == 64 || DEPTH == 128);
  static constexpr int kDepth = DEPTH, kChunks = DEPTH / 64, kQuads = DEPTH / 4;
  static constexpr int kPlane = kChunks * kRows * 128, kBlock = 2 * kPlane;
  static constexpr int kOwnBytes = 4 * kBlock, kOwnBuffers = DEPTH == 64 ? 2 : 1;  // two blocks of each warpgroup
  static constexpr int kRing = kOwnBuffers * kOwnBytes;
  static constexpr int kPassThreads = 256;  // of the pass in front
  static constexpr int kSlots = DEPTH == 64 ? 5 : 3;
  static constexpr int kBytes = kRing + kSlots * kBlock;
};

using AcrossDepth = PlaneView<kRows * 128, 128>;

// 64 queries. Each row of dO has a scale 2^g_i, since a row of dQ is as large as its row of dO. The largest of a block
// is g_scale, and weights of dV make good for the rest.
struct QueryBlock {
  // Tiles of keys read these members, which are copied in bulk.
  float logit[kRows];   // 14 + log2(2^g_i / g_scale) - log2(e) logsumexp; with a mask, -logsumexp
  float delta[kRows];   // delta g_scale / 2^g_i
  __half shift[kRows];  // 14 + log2(2^g_i / g_scale)
  float q_scale, g_scale;
  float most_norm, most_delta;   // largest |dO|, in units of 2^g_i, and |delta| g_scale / 2^g_i
  float least_logit, least_out;  // the smallest over rows of max(1, |logsumexp|), and of the largest |O|
  int64_t mask;                  // the head's mask: its offset
  int first, unused[3];          // the first query
  // Tiles of queries read these.
  float row_logit[kRows];                   // logit without dO's row scale
  float row_delta[kRows], row_norm[kRows];  // delta; |dO| in units of 2^g_i
  float row_g_scale[kRows];                 // 2^g_i
  float row_least_logit[kRows], row_least_out[kRows];
};
constexpr int kQueryBytes = 2 * 4 * kRows + 2 * kRows + 48;
static_assert(offsetof(QueryBlock, row_logit) == kQueryBytes && kQueryBytes % 16 == 0);

// 64 keys.
struct KeyBlock {
  float k_scale, v_scale, v_norm;  // v_norm: largest |V| of a row, in units of v_scale
  int first;                       // the first key
  int spread;                      // 1 if rows of V differ by more than kMostSpread: each then has its own bound of dS
  uint32_t order;                  // of S's steps (../step_order.cuh)
  int unused[2];
  float row_norm[kRows];  // |V|; it isn't copied
};
constexpr int kKeyBytes = 32;
static_assert(offsetof(KeyBlock, row_norm) == kKeyBytes);
constexpr float kMostSpread = 16;

static_assert(sizeof(QueryBlock) == kQueryBlockBytes && sizeof(KeyBlock) == kKeyBlockBytes);

// The logarithm of a weight, less its rounding errors, isn't above 0. NaN stays NaN.
__device__ __forceinline__ float at_most_zero(float x) { return -hopper::max_or_nan(-x, 0); }

constexpr int kLeastShift = -60;  // rows that are smaller than 2^-60 of their block's largest have its scale 2^-60

struct Job {
  Gradients g;
  int64_t padded_queries;        // of logsumexp
  int heads, groups, share;      // of all batches; heads of a group
  int query_blocks, key_blocks;  // of a head, of a group
  int query_tiles, key_tiles;    // of a head, of a group
  int all_key_tiles, all_tiles;  // of all groups; and of all heads behind them. 0 where nothing is wanted
  char *q, *grad, *k, *v;        // planes
  QueryBlock* queries;
  KeyBlock* keys;
  int* claims;   // number of tiles that thread blocks have begun
  float factor;  // of sums that are logits
};

}  // namespace sgemm::attention::backward
