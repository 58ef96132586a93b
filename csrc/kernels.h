// THE TABLE, once for each of the two builds of kernels.cu.
#pragma once
#include "gemm.h"

namespace sgemm {

struct Backend {
  Table table;
  // Copies `source` to `target`, which has unit column stride and as many rows; its further columns become zero.
  void (*pack)(const ConstMatrix& source, const Matrix& target, int64_t batch, const Context& context);
  // D = f(D), for a row that leaves f out.
  void (*activate)(const Problem& problem, const Context& context);
};

namespace cuda_backend {
Backend backend();  // only where SGEMM_CUDA is defined
}
namespace emulated_backend {
Backend backend();
}

}  // namespace sgemm
