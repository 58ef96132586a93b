#include "packing.h"

#include <cstdint>

#include "../problem/views.h"

namespace sgemm {
namespace {

// Returns the view that a row reads of an operand whose copy is at `memory`. Rows of the copy are padded to whole
// float4s with zeros.
ConstMatrix copied(const Kernel& kernel, const ConstMatrix& x, bool turn, int64_t batch, float* memory) {
  const ConstMatrix source = turned(x, turn);
  const Matrix copy = packed_copy(source, matrices(source, batch), memory);
  const int64_t cols = kernel.reads == Reads::kAnyStrides ? source.cols : copy.cols;
  return turned({copy.data, copy.rows, cols, copy.row, 1, copy.batch}, turn);
}

}  // namespace

Packing packing(const Kernel& kernel, const Problem& p) {
  Packing copies = {};
  if (p.k == 0 || kernel.reads == Reads::kMappedBFloat16) return copies;
  const auto packed = [&](const ConstMatrix& x, ElementType elements, bool larger) {
    const bool as_it_lies = kernel.reads_16_bits || (kernel.streams_16_bits && larger);
    if (elements != ElementType::kFloat32 && !as_it_lies) return true;
    if (kernel.only_one_stride && x.batch.group) return true;
    switch (kernel.reads) {
      case Reads::kAnyStrides:
        return false;
      case Reads::kAlignedRows:
        return !has_quads(x);
      default:
        return !can_be_mapped(x, matrices(x, p.batch));
    }
  };
  // For a row that reads any strides, copies keep neighbours in memory as neighbours.
  const auto turns = [&](const ConstMatrix& x) {
    return kernel.reads == Reads::kAnyStrides && x.row == 1 && x.col != 1;
  };
  copies.turn_a = turns(p.a);
  copies.turn_b = kernel.reads == Reads::kMappedAlongK || turns(p.b);
  const ConstMatrix a = turned(p.a, copies.turn_a), b = turned(p.b, copies.turn_b);
  copies.a = packed(a, p.elements_a, p.m >= p.n);
  copies.b = packed(b, p.elements_b, p.m < p.n);
  copies.shared = copies.a && copies.b && is_gram(p) && kernel.reads == Reads::kAnyStrides;
  const auto floats = [&](const ConstMatrix& x) { return matrices(x, p.batch) * x.rows * packed_cols(x); };
  if (copies.a) copies.floats_a = floats(a);
  if (copies.b && !copies.shared) copies.floats_b = floats(b);
  return copies;
}

ConstMatrix turned(const ConstMatrix& x, bool turn) { return turn ? transposed(x) : x; }

Problem with_copies(const Kernel& kernel, const Problem& p, const Packing& copies, float* memory) {
  Problem read = p;
  if (copies.a) {
    read.a = copied(kernel, p.a, copies.turn_a, p.batch, memory);
    read.elements_a = ElementType::kFloat32;
  }
  if (copies.b) {
    read.b = copies.shared ? transposed(read.a) : copied(kernel, p.b, copies.turn_b, p.batch, memory + copies.floats_a);
    read.elements_b = ElementType::kFloat32;
  }
  return read;
}

Problem planned_problem(const Kernel& kernel, const Problem& p, const Packing& copies) {
  if (p.elements_a == ElementType::kFloat32 && p.elements_b == ElementType::kFloat32) return p;
  return with_copies(kernel, p, copies, reinterpret_cast<float*>(uintptr_t{1024}));
}

}  // namespace sgemm
