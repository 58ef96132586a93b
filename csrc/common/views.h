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

// Whether COUNT neighbours of a row can be read, or written, at once.
template <int COUNT, class T>
bool has_groups(const MatrixView<T>& x) {
  return x.col == 1 && x.cols % COUNT == 0 && x.row % COUNT == 0 && has_groups<COUNT>(x.batch) &&
         reinterpret_cast<uintptr_t>(x.data) % (COUNT * sizeof(T)) == 0;
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

// What a product reads and writes at least.
inline double bytes(const Problem& p) {
  const double operands = double(p.m) * p.k * matrices(p.a, p.batch) + double(p.k) * p.n * matrices(p.b, p.batch);
  return 4 * (operands + double(p.m) * p.n * p.batch * (p.beta != 0 ? 2 : 1));
}

}  // namespace sgemm
