// Gradients of attention, as the host sees them:
//
//   dV = P^T dO,   dS = P o (dO V^T - delta),   dQ = scale dS K,   dK = scale dS^T Q,   delta = rowsum(dO o O)
//
// dS is also the gradient of an additive mask.
#pragma once
#include "../attention.h"

namespace sgemm::attention::backward {

struct Gradients {
  Problem p;                         // its out and logsumexp aren't used
  ConstMatrix out, grad;             // the forward's output, and its gradient dO
  const float* logsumexp = nullptr;  // the forward's, (batch, head, padded_queries())
  Matrix q, k, v;                    // results, without data if they aren't wanted; k and v both or neither
  float* mask = nullptr;             // result, (batch, head, query, key); or null
};

constexpr int kRows = 64, kTile = 128;                            // rows of a block of planes, and of a tile
constexpr int64_t kQueryBlockBytes = 2224, kKeyBlockBytes = 288;  // what is known of a block (shape.cuh)

// A kernel's depth: 64 or 128.
inline int compiled_depth(const Gradients& g) { return g.p.depth <= 64 && g.p.value_depth <= 64 ? 64 : 128; }

// Returns true if one kernel keeps the planes of two heads in shared memory (resident.cuh): of short sequences, with
// enough heads for all SMs. The bits are the same.
bool stay_in_shared_memory(const Gradients& g, const Device& device);

// Problems whose workspace would exceed its limit are cut into slices, which use the same workspace one after the
// other. A slice has some batch entries, or some groups of one entry. The bits don't depend on the slices.
struct Slice {
  int batches, groups;  // the last slices may be smaller
};
Slice largest_slice(const Gradients& g);

// Returns the slice whose first batch entry, and first group in it, are these.
Gradients slice_at(const Gradients& g, const Slice& largest, int batch, int group);

// The workspace of the largest slice; nothing if planes stay in shared memory.
struct Layout {
  int64_t query_blocks, key_blocks;  // of its heads, and of its groups
  size_t q, grad, k, v, queries, keys, claims, total;
};
Layout layout(const Gradients& g, const Device& device);

// Returns the predicted seconds of the kernels here, and of PyTorch's memory-efficient kernel.
Seconds predicted(const Gradients& g, const Device& device);

// Precondition: a device of compute capability 9.0, no size is 0, and rows of q, k, v, out and grad are aligned to 16
// bytes.
void run(const Gradients& gradients, const Context& context);

}  // namespace sgemm::attention::backward
