// The product with its operands exchanged: D^T = B^T A^T, the same sums.
#pragma once
#include "../gemm.h"

namespace sgemm::ieee {

template <class T>
MatrixView<T> transposed(const MatrixView<T>& x) {
  return {x.data, x.cols, x.rows, x.col, x.row, x.batch};
}

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

}  // namespace sgemm::ieee
