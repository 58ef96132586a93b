// Host code for views of matrices: predicates, blocks, and the bytes that a product moves.
#pragma once
#include <algorithm>

#include "problem.h"

namespace sgemm {

template <class T>
MatrixView<T> transposed(const MatrixView<T>& x) {
  return {x.data, x.cols, x.rows, x.col, x.row, x.batch};
}

// The product with its operands exchanged: D^T = B^T A^T, the same sums.
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

// Whether D = f(alpha A A^T): B is A in memory, transposed, and D is symmetric.
inline bool is_gram(const Problem& p) {
  return p.a.data && p.a.data == p.b.data && p.m == p.n && p.a.row == p.b.col && p.a.col == p.b.row &&
         p.a.batch == p.b.batch && p.elements_a == p.elements_b && p.beta == 0 && p.k_before == 0 && !p.b_planes;
}

// Whether matrices are whole groups of COUNT elements apart.
template <int COUNT>
bool has_groups(const BatchStride& batch) {
  return batch.stride % COUNT == 0 && batch.group_stride % COUNT == 0;
}

// Whether a row's elements lie side by side, and rows begin where COUNT of them can be read at once.
template <int COUNT, class T>
bool has_aligned_rows(const MatrixView<T>& x) {
  return x.col == 1 && x.row % COUNT == 0 && has_groups<COUNT>(x.batch) &&
         reinterpret_cast<uintptr_t>(x.data) % (COUNT * sizeof(T)) == 0;
}

// Whether COUNT neighbours of a row can be read, or written, at once, to the row's end.
template <int COUNT, class T>
bool has_groups(const MatrixView<T>& x) {
  return x.cols % COUNT == 0 && has_aligned_rows<COUNT>(x);
}
template <class T>
bool has_quads(const MatrixView<T>& x) {
  return has_groups<4>(x);
}

// Whether COUNT neighbours of D's rows, and of C's if it is read, can be written and read at once.
template <int COUNT>
bool ends_in_groups(const Problem& p) {
  return has_groups<COUNT>(p.d) && (p.beta == 0 || has_groups<COUNT>(p.c));
}

// Matrices in memory: one that the whole batch shares counts once.
template <class T>
int64_t matrices(const MatrixView<T>& x, int64_t batch) {
  return x.batch.none() ? 1 : batch;
}

// An operand whose elements are of 16 bits.
using Matrix16 = MatrixView<const uint16_t>;
inline Matrix16 in_16_bits(const ConstMatrix& x) {
  return {reinterpret_cast<const uint16_t*>(x.data), x.rows, x.cols, x.row, x.col, x.batch};
}

inline bool has_quads(const ConstMatrix& x, ElementType elements) {
  return elements == ElementType::kFloat32 ? has_quads(x) : has_quads(in_16_bits(x));
}

// Whether a tensor map can describe `count` such matrices in memory.
template <class T>
bool can_be_mapped(const MatrixView<T>& x, int64_t count) {
  constexpr int64_t kMaxExtent = int64_t{1} << 31, kMaxBytes = int64_t{1} << 40;
  constexpr int64_t kBytes = sizeof(T);
  const auto fits = [](int64_t stride) { return stride > 0 && kBytes * stride < kMaxBytes; };
  const auto inside = [](int64_t extent) { return extent > 0 && extent < kMaxExtent; };
  return has_aligned_rows<16 / kBytes>(x) && fits(x.row) && (count == 1 || fits(x.batch.stride)) &&
         (x.batch.group == 0 || fits(x.batch.group_stride)) && inside(x.rows) && inside(x.cols);
}

// A copy of `count` matrices in `memory`: row-major, one behind the other, in rows of whole float4s.
inline int64_t packed_cols(const ConstMatrix& x) { return ceil_div(x.cols, 4) * 4; }
inline Matrix packed_copy(const ConstMatrix& x, int64_t count, void* memory) {
  const int64_t cols = packed_cols(x);
  return {static_cast<float*>(memory), x.rows, cols, cols, 1, count == 1 ? 0 : x.rows * cols};
}

// A block of each matrix from entry `batch` on.
template <class T>
MatrixView<T> block(const MatrixView<T>& x, int64_t batch, int64_t i, int64_t j, int64_t rows, int64_t cols) {
  return {x.data + x.batch.offset(batch) + i * x.row + j * x.col, rows, cols, x.row, x.col, x.batch};
}

// The same of an operand.
inline ConstMatrix block(const ConstMatrix& x, ElementType elements, int64_t batch, int64_t i, int64_t j, int64_t rows,
                         int64_t cols) {
  if (elements == ElementType::kFloat32) return block(x, batch, i, j, rows, cols);
  const Matrix16 of_x = block(in_16_bits(x), batch, i, j, rows, cols);
  return {reinterpret_cast<const float*>(of_x.data), rows, cols, x.row, x.col, x.batch};
}

// How slices of k are added up: so many are read at once, for one after the other each would wait for memory. More of
// them are added up in groups first.
inline constexpr int kReadAtOnce = 20, kSumGroups = 8;
inline constexpr int sum_groups(int64_t slices) { return slices > kReadAtOnce ? kSumGroups : 1; }

inline constexpr int kSectorFloats = 8;  // what memory is written in

// The bytes of A and B that a product reads, and all that it reads and writes, at least.
inline double operand_bytes(const Problem& p) {
  return 4 * (double(p.m) * p.k * matrices(p.a, p.batch) + double(p.k) * p.n * matrices(p.b, p.batch));
}
inline double bytes(const Problem& p) { return operand_bytes(p) + 4.0 * p.m * p.n * p.batch * (p.beta != 0 ? 2 : 1); }

// An operand's rows, of A or of B's transpose, are read along k, but for those whose neighbours lie side by side
// across.
inline bool runs_along_k(int64_t k_stride, int64_t stride) { return k_stride == 1 || stride != 1; }

}  // namespace sgemm
