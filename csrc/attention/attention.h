// Attention of float32 tensors, as the host sees it:
//
//   O[b,h,i] = sum_j P[b,h,i,j] V[b,g,j],   P[b,h,i] = softmax_j(scale Q[b,h,i] K[b,g,j] + mask[b,h,i,j])
//
// Heads of queries share heads of keys in groups: g = h / (heads / groups). docs/attention.md has the arithmetic.
#pragma once
#include "../problem/problem.h"

namespace sgemm::attention {

// The additive mask, and the mask of booleans, whose false stands for -Inf.
enum class MaskKind : int { kNone, kFloat, kBool };
struct Mask {
  const void* data = nullptr;
  MaskKind kind = MaskKind::kNone;
  int64_t batch = 0, head = 0, row = 0, key = 0;  // strides in elements; 0 where the mask is expanded
  bool in_pairs = false;                          // an even key and the next can be read as one aligned vector
};

struct Problem {
  int batches = 0, heads = 0, groups = 0;
  int queries = 0, keys = 0;
  int depth = 0, value_depth = 0;  // multiples of 8, up to kMostDepth
  ConstMatrix q, k, v;             // unit column stride; batches of (batch, head), or (batch, group)
  Mask mask;
  bool causal = false;  // key j takes part in row i if j <= i
  float scale = 1;
  Matrix out;                  // unit column stride, 8-byte aligned rows
  float* logsumexp = nullptr;  // (batch, head, padded_queries()), Inf behind the queries; or null
};

constexpr int kMostDepth = 128, kQueriesOfTile = 128;
constexpr int kQueriesPadded = 32;  // logsumexp's rows are multiples of it, as in PyTorch
SGEMM_HOST_DEVICE constexpr int64_t padded_queries(int64_t queries) {
  return (queries + kQueriesPadded - 1) / kQueriesPadded * kQueriesPadded;
}

// The planes of a block of keys, or of values, take 32 KiB: 128 keys up to a depth of 64, else 64 keys.
constexpr int kBlockBytes = 32768, kScaleBytes = 16;
constexpr int keys_of_block(int depth) { return depth <= 64 ? 128 : 64; }

// Depth that a kernel is compiled for: 32, 64, 96 or 128.
inline int compiled_depth(const Problem& p) {
  const int depth = p.depth > p.value_depth ? p.depth : p.value_depth;
  return static_cast<int>(ceil_div(depth, 32)) * 32;
}

// True if each block of K and V is read by one tile. Its thread block then converts it for itself.
inline bool converts_own(const Problem& p) { return p.heads == p.groups && p.queries <= kQueriesOfTile; }

// The workspace: planes, scales and flags of K's and of V's blocks; nothing if converts_own().
struct Layout {
  int64_t blocks;  // of K, as many of V
  size_t k, v, k_scales, v_scales, flags, total;
  int64_t flag_count;
};
Layout layout(const Problem& p);

// Returns the predicted seconds of the kernels here, and of PyTorch's memory-efficient kernel.
struct Seconds {
  double ours, pytorch;
};
Seconds predicted(const Problem& p, const Device& device);

// Precondition: a device of compute capability 9.0, and no size is 0.
void run(const Problem& p, const Context& context);

}  // namespace sgemm::attention
