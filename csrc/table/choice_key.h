// The properties of a problem that a choice and its plan depend on, as numbers, for comparison and for files.
#pragma once
#include <array>
#include <cstdint>

#include "../problem/buffers.h"
#include "../problem/pieces.h"

namespace sgemm {

// Sizes, strides, alignment, the workspace limit, and the Flags. torch_sgemm/choice/tuned.py has their names.
using ChoiceKey = std::array<int64_t, 22>;

// Flags of a problem: reading of C, computing f, adding up pieces of k in D, presence of B's planes, and B being A
// transposed. The remaining bits are A's and B's ElementType.
enum Flags : int64_t {
  kReadsC = 1,
  kComputesF = 2,
  kReadsRowsOfC = 4,
  kAddsUpInD = 8,
  kHasPlanes = 16,
  kIsGram = 32,
  kElementsA = 64,
  kElementsB = 256
};

inline ChoiceKey choice_key(const Problem& p) {
  const auto offset = [](const float* data) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % 16); };
  const int64_t alignment = offset(p.a.data) * 256 + offset(p.b.data) * 16 + offset(p.d.data);
  const int64_t flags = kReadsC * (p.beta != 0) + kComputesF * (p.activation != Activation::kNone) +
                        kReadsRowsOfC * (p.beta != 0 && p.c.row != 0) + kAddsUpInD * adds_up_in_d(p) +
                        kHasPlanes * (p.b_planes != nullptr) + kIsGram * is_gram(p) +
                        kElementsA * static_cast<int64_t>(p.elements_a) +
                        kElementsB * static_cast<int64_t>(p.elements_b);
  return {p.m,
          p.n,
          p.k,
          p.batch,
          p.a.row,
          p.a.col,
          p.a.batch.stride,
          p.a.batch.group,
          p.a.batch.group_stride,
          p.b.row,
          p.b.col,
          p.b.batch.stride,
          p.b.batch.group,
          p.b.batch.group_stride,
          p.d.row,
          p.d.col,
          p.d.batch.stride,
          p.d.batch.group,
          p.d.batch.group_stride,
          alignment,
          static_cast<int64_t>(workspace_limit()),
          flags};
}

// Returns a problem with that key. Its addresses have the original alignment but must not be read.
inline Problem problem_like(const ChoiceKey& key) {
  const auto batch = [&key](int at) { return BatchStride(key[at + 2], key[at + 1], key[at]); };
  const int64_t flags = key[21];
  const auto at = [&key](int shift, int64_t from) { return reinterpret_cast<float*>(from + (key[19] >> shift & 15)); };
  constexpr int64_t kA = 256, kB = 512;  // apart, unless both are one matrix
  Problem p;
  p.m = key[0];
  p.n = key[1];
  p.k = key[2];
  p.batch = key[3];
  p.a = {at(8, kA), p.m, p.k, key[4], key[5], batch(6)};
  p.b = {at(4, flags & kIsGram ? kA : kB), p.k, p.n, key[9], key[10], batch(11)};
  p.d = {at(0, 0), p.m, p.n, key[14], key[15], batch(16)};
  p.c = {nullptr, p.m, p.n, flags & kReadsRowsOfC ? p.n : 0, 1, {}};
  p.beta = flags & kReadsC ? 1.0f : 0.0f;
  p.alpha = flags & (kReadsC | kAddsUpInD) ? 1.0f : 0.5f;
  p.activation = flags & kComputesF ? Activation::kRelu : Activation::kNone;
  p.elements_a = static_cast<ElementType>(flags / kElementsA % 4);
  p.elements_b = static_cast<ElementType>(flags / kElementsB % 4);
  p.b_planes = flags & kHasPlanes ? &p.b_planes : nullptr;
  return p;
}

}  // namespace sgemm
