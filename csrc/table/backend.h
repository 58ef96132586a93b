// THE TABLE, once for each of the two builds of kernels.cu.
#pragma once
#include "../problem/problem.h"
#include "../problem/redone.h"

namespace sgemm {

struct Backend {
  Table table;
  // Copies `source` to `target`, which has unit column stride and as many rows; its further columns become zero.
  void (*pack)(const ConstMatrix& source, ElementType elements, const Matrix& target, int64_t batch,
               const Context& context);
  // D = f(C), for a row that leaves f out, and for who wants what goes into f as well. D may be C.
  void (*activate)(const Problem& problem, const Context& context);
  // Splits a B for many products, into so many bytes of Problem::b_planes. `pack_b` is null where no row takes them.
  size_t (*plane_bytes)(int64_t k, int64_t n);
  void (*pack_b)(const ConstMatrix& b, ElementType elements, void* planes, const Context& context);
  // On the current device since the library was loaded, without waiting for work under way; null without the family.
  Redone (*redone)();
};

namespace cuda_backend {
Backend backend();  // only where SGEMM_CUDA is defined
}
namespace emulated_backend {
Backend backend();
}

}  // namespace sgemm
