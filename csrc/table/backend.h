// THE TABLE, once for each of the two builds of kernels.cu.
#pragma once
#include "../problem/problem.h"
#include "../problem/redone.h"

namespace sgemm {

struct Backend {
  Table table;
  // Copies `source` to `target`, which has unit column stride and as many rows; zeros its further columns.
  void (*pack)(const ConstMatrix& source, ElementType elements, const Matrix& target, int64_t batch,
               const Context& context);
  // Computes D = f(C), for rows without f and for calls that also return the input of f. D may be C.
  void (*activate)(const Problem& problem, const Context& context);
  // plane_bytes: the size of Problem::b_planes. pack_b: splits a B for many products; null if no row takes planes.
  size_t (*plane_bytes)(int64_t k, int64_t n);
  void (*pack_b)(const ConstMatrix& b, ElementType elements, void* planes, const Context& context);
  // Returns the counts on the current device since the library was loaded, without waiting for kernels in flight. Null
  // without the family split.
  Redone (*redone)();
};

namespace cuda_backend {
Backend backend();  // only where SGEMM_CUDA is defined
}
namespace emulated_backend {
Backend backend();
}

}  // namespace sgemm
