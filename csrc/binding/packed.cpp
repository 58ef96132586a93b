// Right operands that are split once; see torch_sgemm/functional/packed.py.
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../table/dispatch.h"
#include "../table/namespace.h"
#include "boxed.h"
#include "checks.h"
#include "product.h"
#if defined(SGEMM_CUDA)
#include "../gpu/graph_owner.h"
#endif

namespace sgemm {
namespace {

using Planes = std::unique_ptr<Tensor>;

// Planes whose graphs are destroyed. CUDA reports that on a thread that must not free memory, so the next pack() frees
// them.
struct Discarded {
  std::mutex mutex;
  std::vector<Planes> planes;

  static Discarded& all() {
    static Discarded& all = *new Discarded;  // outlives CUDA's threads
    return all;
  }

  static void take(void* planes) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    all().planes.emplace_back(static_cast<Tensor*>(planes));
  }

  static void free() {
    std::vector<Planes> planes;  // freed after the lock is released
    const std::lock_guard<std::mutex> lock(all().mutex);
    planes.swap(all().planes);
  }
};

// Returns the planes of b, or nothing if no kernel of the family split runs.
std::optional<Tensor> pack(const Tensor& b) {
  check_operand("pack", "b", b, b, 2);
  Discarded::free();
  const Device& device = device_of(b);
  const Backend rows = backend(device.type);
  const auto takes = [&](const Kernel& kernel) { return kernel.takes_planes && runs_on(kernel, device); };
  if (std::none_of(rows.table.begin(), rows.table.end(), takes)) return std::nullopt;
  const torch::stable::accelerator::DeviceGuard guard(b.get_device_index());
  Tensor planes = empty({static_cast<int64_t>(rows.plane_bytes(b.size(0), b.size(1)) / 4)}, b);
  if (b.numel()) rows.pack_b(view(b), elements(b), planes.mutable_data_ptr(), {current_stream(b), &device, nullptr});
  return planes;
}

// Makes the graph that the current stream is being captured into an owner of the planes.
void keep_with_graph(const Tensor& planes) {
#if defined(SGEMM_CUDA)
  const torch::stable::accelerator::DeviceGuard guard(planes.get_device_index());
  give_to_graph(current_stream(planes), new Tensor(planes), Discarded::take);
#else
  fail("keep_with_graph", "this build has no CUDA kernels, argument 'planes' has " + describe(planes));
#endif
}

// Returns activation(beta c + alpha a b), and also the input of the activation if requested. Precondition: `planes` is
// the result of pack(b).
std::pair<Tensor, std::optional<Tensor>> packed_product(const Tensor& a, const Tensor& b,
                                                        const std::optional<Tensor>& planes,
                                                        const std::optional<Tensor>& c, const std::string& kernel,
                                                        const std::optional<std::string>& activation, double beta,
                                                        double alpha, bool with_inner) {
  constexpr const char* op = "packed_mm";
  check_inputs(op, a, b, 2);
  if (planes) check_planes(op, *planes, b);
  if (c) check_addend(op, *c, a, b, nullptr);
  ProductExtras extras;
  extras.activation = activation_named(op, activation);
  extras.planes = planes ? &*planes : nullptr;
  const Tensor out = new_output(a, b);
  std::optional<Tensor> inner;
  if (with_inner) extras.inner = &inner.emplace(new_output(a, b));
  const Tensor& addend = c ? *c : inner ? *inner : out;  // not read if beta = 0
  product(op, out, &addend, a, b, alpha, c ? beta : 0, kernel, extras);
  return {out, inner};
}

Tensor packed_mm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& planes, const std::optional<Tensor>& c,
                 const std::string& kernel, const std::optional<std::string>& activation, double beta, double alpha) {
  return packed_product(a, b, planes, c, kernel, activation, beta, alpha, false).first;
}

// x has any number of dimensions.
Tensor packed_linear(const Tensor& x, const Tensor& b, const std::optional<Tensor>& planes,
                     const std::optional<Tensor>& bias, const std::string& kernel,
                     const std::optional<std::string>& activation) {
  check<Features>("packed_mm", "x", x);
  return of_rows(packed_mm(rows_of(x), b, planes, bias, kernel, activation, 1, 1), x);
}

std::tuple<Tensor, Tensor> packed_mm_with_inner(const Tensor& a, const Tensor& b, const std::optional<Tensor>& planes,
                                                const std::optional<Tensor>& c, const std::string& kernel,
                                                const std::string& activation, double beta, double alpha) {
  auto [out, inner] = packed_product(a, b, planes, c, kernel, activation, beta, alpha, true);
  return {out, *inner};
}

void register_packed(torch::stable::detail::StableLibrary& m) {
  m.impl("_pack", SGEMM_BOX(&pack));
  m.impl("_packed_mm", SGEMM_BOX(&packed_mm));
  m.impl("_packed_linear", SGEMM_BOX(&packed_linear));
  m.impl("_packed_mm_with_inner", SGEMM_BOX(&packed_mm_with_inner));
}

}  // namespace
}  // namespace sgemm

STABLE_TORCH_LIBRARY_FRAGMENT(SGEMM_NAMESPACE, m) {
  m.def("_pack(Tensor b) -> Tensor?");
  m.def("_keep_with_graph(Tensor planes) -> ()");
  m.def(
      "_packed_mm(Tensor a, Tensor b, Tensor? planes, Tensor? c, str kernel, str? activation, *, float beta=1, "
      "float alpha=1) -> Tensor");
  m.def("_packed_linear(Tensor x, Tensor b, Tensor? planes, Tensor? bias, str kernel, str? activation) -> Tensor");
  m.def(
      "_packed_mm_with_inner(Tensor a, Tensor b, Tensor? planes, Tensor? c, str kernel, str activation, *, float beta, "
      "float alpha) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CPU, m) { sgemm::register_packed(m); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) {
  sgemm::register_packed(m);
  m.impl("_keep_with_graph", SGEMM_BOX(&sgemm::keep_with_graph));
}
