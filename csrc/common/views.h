// What the host asks of views of matrices, and what it makes of them.
#pragma once
#include "../gemm.h"

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
          p.activation};
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

// Matrices in memory: one that the whole batch shares counts once.
template <class T>
int64_t matrices(const MatrixView<T>& x, int64_t batch) {
  return x.batch.none() ? 1 : batch;
}

// What a product reads of A and B, and all that it reads and writes, at least.
inline double operand_bytes(const Problem& p) {
  return 4 * (double(p.m) * p.k * matrices(p.a, p.batch) + double(p.k) * p.n * matrices(p.b, p.batch));
}
inline double bytes(const Problem& p) { return operand_bytes(p) + 4.0 * p.m * p.n * p.batch * (p.beta != 0 ? 2 : 1); }

// An operand's rows, of A or of B's transpose, are read along k, but for those whose neighbours lie side by side
// across.
inline bool runs_along_k(int64_t k_stride, int64_t stride) { return k_stride == 1 || stride != 1; }

}  // namespace sgemm
