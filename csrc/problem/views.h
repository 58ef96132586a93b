// Host code for matrix views: predicates, blocks, and the bytes that a product moves.
#pragma once
#include <algorithm>

#include "problem.h"

namespace sgemm {

template <class T>
MatrixView<T> transposed(const MatrixView<T>& x) {
  return {x.data, x.cols, x.rows, x.col, x.row, x.batch};
}

// Exchanges the operands: D^T = B^T A^T, with the same sums.
inline Problem transposed(const Problem& p) {
  return {p.n,
          p.m,
          p.k,
          p.batch,
          p.alpha,
          p.beta,
          transposed(p.b),
          transposed(p.a),
          transposed(p.c),
          transposed(p.d),
          p.activation,
          p.k_before,
          p.elements_b,
          p.elements_a};
}

// Returns true if D = f(alpha A A^T): B is the transposed A in memory, and D is symmetric.
inline bool is_gram(const Problem& p) {
  return p.a.data && p.a.data == p.b.data && p.m == p.n && p.a.row == p.b.col && p.a.col == p.b.row &&
         p.a.batch == p.b.batch && p.elements_a == p.elements_b && p.beta == 0 && p.k_before == 0 && !p.b_planes;
}

// Returns true if the distances between matrices are multiples of COUNT elements.
template <int COUNT>
bool has_groups(const BatchStride& batch) {
  return batch.stride % COUNT == 0 && batch.group_stride % COUNT == 0;
}

// Returns true if a row's elements are contiguous and every row's start is aligned to a vector of COUNT elements.
template <int COUNT, class T>
bool has_aligned_rows(const MatrixView<T>& x) {
  return x.col == 1 && x.row % COUNT == 0 && has_groups<COUNT>(x.batch) &&
         reinterpret_cast<uintptr_t>(x.data) % (COUNT * sizeof(T)) == 0;
}

// Returns true if whole rows can be read or written in vectors of COUNT elements.
template <int COUNT, class T>
bool has_groups(const MatrixView<T>& x) {
  return x.cols % COUNT == 0 && has_aligned_rows<COUNT>(x);
}
template <class T>
bool has_quads(const MatrixView<T>& x) {
  return has_groups<4>(x);
}

// Returns true if rows of D, and of C if it is read, can be accessed in vectors of COUNT elements.
template <int COUNT>
bool ends_in_groups(const Problem& p) {
  return has_groups<COUNT>(p.d) && (p.beta == 0 || has_groups<COUNT>(p.c));
}

// Number of matrices in memory: one if the whole batch shares it.
template <class T>
int64_t matrices(const MatrixView<T>& x, int64_t batch) {
  return x.batch.none() ? 1 : batch;
}

// An operand with 16-bit elements.
using Matrix16 = MatrixView<const uint16_t>;
inline Matrix16 in_16_bits(const ConstMatrix& x) {
  return {reinterpret_cast<const uint16_t*>(x.data), x.rows, x.cols, x.row, x.col, x.batch};
}

inline bool has_quads(const ConstMatrix& x, ElementType elements) {
  return elements == ElementType::kFloat32 ? has_quads(x) : has_quads(in_16_bits(x));
}

// Returns true if a tensor map can describe `count` such matrices in memory.
template <class T>
bool can_be_mapped(const MatrixView<T>& x, int64_t count) {
  constexpr int64_t kMaxExtent = int64_t{1} << 31, kMaxBytes = int64_t{1} << 40;
  constexpr int64_t kBytes = sizeof(T);
  const auto fits = [](int64_t stride) { return stride > 0 && kBytes * stride < kMaxBytes; };
  const auto inside = [](int64_t extent) { return extent > 0 && extent < kMaxExtent; };
  return has_aligned_rows<16 / kBytes>(x) && fits(x.row) && (count == 1 || fits(x.batch.stride)) &&
         (x.batch.group == 0 || fits(x.batch.group_stride)) && inside(x.rows) && inside(x.cols);
}

// packed_copy: a view of `count` consecutive row-major matrices in `memory`, with rows of whole float4s.
inline int64_t packed_cols(const ConstMatrix& x) { return ceil_div(x.cols, 4) * 4; }
inline Matrix packed_copy(const ConstMatrix& x, int64_t count, void* memory) {
  const int64_t cols = packed_cols(x);
  return {static_cast<float*>(memory), x.rows, cols, cols, 1, count == 1 ? 0 : x.rows * cols};
}

// Returns the same block of each matrix, from entry `batch` on.
template <class T>
MatrixView<T> block(const MatrixView<T>& x, int64_t batch, int64_t i, int64_t j, int64_t rows, int64_t cols) {
  return {x.data + x.batch.offset(batch) + i * x.row + j * x.col, rows, cols, x.row, x.col, x.batch};
}

// The same for an operand with elements of type `elements`.
inline ConstMatrix block(const ConstMatrix& x, ElementType elements, int64_t batch, int64_t i, int64_t j, int64_t rows,
                         int64_t cols) {
  if (elements == ElementType::kFloat32) return block(x, batch, i, j, rows, cols);
  const Matrix16 of_x = block(in_16_bits(x), batch, i, j, rows, cols);
  return {reinterpret_cast<const float*>(of_x.data), rows, cols, x.row, x.col, x.batch};
}

// The sum over slices of k reads up to kReadAtOnce slices together, because consecutive reads would each wait for
// memory. More slices are first added up in kSumGroups groups.
inline constexpr int kReadAtOnce = 20, kSumGroups = 8;
inline constexpr int sum_groups(int64_t slices) { return slices > kReadAtOnce ? kSumGroups : 1; }

inline constexpr int kSectorFloats = 8;  // a memory sector, the unit of a write

// Lower bounds: the bytes of A and B that a product reads, and all bytes that it reads and writes. Each counts as
// float32.
inline double operand_bytes(const Problem& p) {
  return 4 * (double(p.m) * p.k * matrices(p.a, p.batch) + double(p.k) * p.n * matrices(p.b, p.batch));
}
inline double bytes(const Problem& p) { return operand_bytes(p) + 4.0 * p.m * p.n * p.batch * (p.beta != 0 ? 2 : 1); }

// Returns true if rows of an operand, seen as rows along k (A, or Bᵀ), are read along k. Otherwise neighbouring rows
// are contiguous, and reads go across them.
inline bool runs_along_k(int64_t k_stride, int64_t stride) { return k_stride == 1 || stride != 1; }

}  // namespace sgemm
