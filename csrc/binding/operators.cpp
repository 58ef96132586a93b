// The operators: schemas and checks. They are forward only; torch_sgemm/torch_ops/ops.py adds the fakes.
#include "../table/namespace.h"
#include "boxed.h"
#include "checks.h"
#include "product.h"

namespace sgemm {
namespace {

// Operators on matrices (DIMS = 2) and on batches of matrices (3). mm also takes batches of two dimensions (4).
template <int DIMS>
struct Operators {
  static constexpr bool kBatched = DIMS == 3;

  static Tensor mm(const Tensor& a, const Tensor& b, const std::string& kernel) {
    constexpr const char* op = DIMS == 4 ? "matmul" : kBatched ? "bmm" : "mm";
    check_inputs(op, a, b, DIMS);
    Tensor out = new_output(a, b);
    product(op, out, nullptr, a, b, 1, 0, kernel);
    return out;
  }

  static void mm_out(const Tensor& a, const Tensor& b, const std::string& kernel, const Tensor& out) {
    constexpr const char* op = kBatched ? "bmm_out" : "mm_out";
    check_inputs(op, a, b, DIMS);
    check_output(op, "out", out, a, b);
    product(op, out, nullptr, a, b, 1, 0, kernel, writes("out"));
  }

  static Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, double beta,
                      double alpha) {
    constexpr const char* op = kBatched ? "baddbmm" : "addmm";
    check_inputs(op, a, b, DIMS);
    check_addend(op, c, a, b, nullptr);
    Tensor out = new_output(a, b);
    product(op, out, &c, a, b, alpha, beta, kernel);
    return out;
  }

  static void addmm_out(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, double beta,
                        double alpha, const Tensor& out) {
    constexpr const char* op = kBatched ? "baddbmm_out" : "addmm_out";
    check_inputs(op, a, b, DIMS);
    check_output(op, "out", out, a, b);
    check_addend(op, c, a, b, &out);
    product(op, out, &c, a, b, alpha, beta, kernel, writes("out"));
  }
};

void gemm_(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, double alpha, double beta) {
  check_defined("gemm_", "a", a);
  check_inputs("gemm_", a, b, a.dim() == 3 ? 3 : 2);
  check_output("gemm_", "c", c, a, b);
  product("gemm_", c, &c, a, b, alpha, beta, kernel, writes("c"));
}

void register_products(torch::stable::detail::StableLibrary& m) {
  m.impl("mm", SGEMM_BOX(&Operators<2>::mm));
  m.impl("mm_out", SGEMM_BOX(&Operators<2>::mm_out));
  m.impl("addmm", SGEMM_BOX(&Operators<2>::addmm));
  m.impl("addmm_out", SGEMM_BOX(&Operators<2>::addmm_out));
  m.impl("bmm", SGEMM_BOX(&Operators<3>::mm));
  m.impl("bmm_out", SGEMM_BOX(&Operators<3>::mm_out));
  m.impl("baddbmm", SGEMM_BOX(&Operators<3>::addmm));
  m.impl("baddbmm_out", SGEMM_BOX(&Operators<3>::addmm_out));
  m.impl("gemm_", SGEMM_BOX(&gemm_));
  m.impl("_matmul", SGEMM_BOX(&Operators<4>::mm));
}

}  // namespace
}  // namespace sgemm

// PyTorch's macro pastes its argument, so this one expands the namespace's name first.
#define SGEMM_TORCH_LIBRARY(space, m) STABLE_TORCH_LIBRARY(space, m)

// `kernel` may be positional, because Inductor can't pass on a keyword-only argument of that name.
SGEMM_TORCH_LIBRARY(SGEMM_NAMESPACE, m) {
  m.def("mm(Tensor a, Tensor b, str kernel=\"auto\") -> Tensor");
  m.def("bmm(Tensor a, Tensor b, str kernel=\"auto\") -> Tensor");
  m.def("addmm(Tensor c, Tensor a, Tensor b, str kernel=\"auto\", *, float beta=1, float alpha=1) -> Tensor");
  m.def("baddbmm(Tensor c, Tensor a, Tensor b, str kernel=\"auto\", *, float beta=1, float alpha=1) -> Tensor");
  m.def("mm_out(Tensor a, Tensor b, str kernel=\"auto\", *, Tensor(a!) out) -> ()");
  m.def("bmm_out(Tensor a, Tensor b, str kernel=\"auto\", *, Tensor(a!) out) -> ()");
  m.def(
      "addmm_out(Tensor c, Tensor a, Tensor b, str kernel=\"auto\", *, float beta=1, float alpha=1, Tensor(a!) out) -> "
      "()");
  m.def(
      "baddbmm_out(Tensor c, Tensor a, Tensor b, str kernel=\"auto\", *, float beta=1, float alpha=1, Tensor(a!) out) "
      "-> "
      "()");
  m.def("gemm_(Tensor(a!) c, Tensor a, Tensor b, str kernel=\"auto\", *, float alpha=1, float beta=0) -> ()");
  m.def("_matmul(Tensor a, Tensor b, str kernel=\"auto\") -> Tensor");  // batches of two dimensions
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CPU, m) { sgemm::register_products(m); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) { sgemm::register_products(m); }
