// Introspection for torch_sgemm/choice, tests and benchmarks: the table, choices, plans, devices, and the guard's
// counts.
#include <torch/csrc/stable/accelerator.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../models/models.h"
#include "../problem/buffers.h"
#include "../table/describe.h"
#include "../table/dispatch.h"
#include "../table/namespace.h"
#include "boxed.h"
#include "checks.h"
#include "product.h"

namespace sgemm {
namespace {

// A row's plans for c = alpha a b + beta c, and that product with one of them, for tests and measurements. With
// `planes`, the result of pack(b), they are the plans that read them.
struct Planned {
  Problem p;
  const Device& device;
  Backend rows;
  const Kernel& kernel;
  std::vector<Plan> plans;

  Planned(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, const std::string& name, double alpha,
          double beta, const std::optional<Tensor>& planes)
      : p(checked(op, c, a, b, alpha, beta, planes)),
        device(device_of(c)),
        rows(backend(device.type)),
        kernel(*chosen(op, rows.table, p, device, name, a, b).kernel) {
    if (!is_named(kernel, name)) fail(op, "argument 'kernel' is \"" + name + "\"; accepted: a row's name");
    if (!is_aten(kernel)) plans = sgemm::plans(kernel, p, device, name);
  }

 private:
  static Problem checked(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta,
                         const std::optional<Tensor>& planes) {
    check_inputs(op, a, b, !planes && a.dim() == 3 ? 3 : 2);
    check_output(op, "c", c, a, b);
    if (planes) check_planes(op, *planes, b);
    Problem p = problem(op, c, &c, a, b, alpha, beta);
    if (planes && p.k > 0) p.b_planes = planes->mutable_data_ptr();
    return p;
  }
};

// Returns the predicted times of a row's plans, seconds.
std::vector<double> plans(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, double alpha,
                          double beta, const std::optional<Tensor>& planes) {
  std::vector<double> seconds;
  for (const Plan& plan : Planned("_plans", c, a, b, kernel, alpha, beta, planes).plans)
    seconds.push_back(plan.seconds);
  return seconds;
}

void run_plan(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, int64_t index, double alpha,
              double beta, const std::optional<Tensor>& planes) {
  constexpr const char* op = "_run_plan";
  const Planned planned(op, c, a, b, kernel, alpha, beta, planes);
  const int64_t count = static_cast<int64_t>(planned.plans.size());
  if (count == 0) fail(op, "argument 'kernel' is \"" + kernel + "\", which has no plans; accepted: a row of a family");
  if (index < 0 || index >= count)
    fail(op, "argument 'index' is " + std::to_string(index) + "; accepted: 0 to " + std::to_string(count - 1) +
                 ", the plans that \"" + kernel + "\" has here");
  begin_writing(op, "c", c);
  if (c.numel() == 0) return;
  launch(planned.rows, planned.kernel, planned.p, planned.plans[static_cast<size_t>(index)], planned.device, c);
}

std::string kernels() { return describe_table(emulated_backend::backend().table, backend(DeviceType::kCuda).table); }

std::string error_bounds(int64_t k) { return describe_bounds(backend(DeviceType::kCuda).table, k); }

// Returns a device's index in the operators' type, after a range check.
int checked_index(const char* op, int64_t index) {
  using Index = torch::stable::accelerator::DeviceIndex;
  if (index < 0 || index > std::numeric_limits<Index>::max())
    fail(op, "argument 'index' is " + std::to_string(index) + "; accepted: a CUDA device's");
  return static_cast<int>(index);
}

// Returns {1 for cuda or 0, arch, SMs, clock in kHz, bandwidth in MB/s, L2 in bytes, arch of the code, millionths of an
// H200's tensor rate}.
std::vector<int64_t> device(int64_t index) {
  const Device& d = device_of_index(checked_index("_device", index));
  return {1,
          d.arch,
          d.sms,
          int64_t(d.clock_ghz * 1e6),
          int64_t(d.bandwidth_gbs * 1e3),
          int64_t(d.l2_mb * 1048576),
          d.code_arch,
          int64_t(d.tensor_rate * 1e6)};
}

std::string device_name(int64_t index) { return device_of_index(checked_index("_device_name", index)).name; }

// Returns {elements, tiles} that the guard of the family split has recomputed on a device.
std::vector<int64_t> redone(int64_t index) {
  const auto redone = backend(DeviceType::kCuda).redone;
  if (!redone)
    throw std::runtime_error("sgemm: this build has no kernels of the family split; see python -m torch_sgemm.info");
  const torch::stable::accelerator::DeviceGuard guard(checked_index("_redone", index));
  const Redone counts = redone();
  return {static_cast<int64_t>(counts.elements), static_cast<int64_t>(counts.tiles)};
}

// Decodes a problem: {m, n, k, batch}, then for a and for b the row, column and batch stride and the address modulo 16,
// then their ElementTypes. If C is given, its strides and address follow. D is a new tensor.
Problem problem_of(const char* op, const std::vector<int64_t>& numbers, double alpha, double beta) {
  if (numbers.size() != 14 && numbers.size() != 18) fail(op, "14 numbers of the problem are accepted, 18 with C");
  constexpr int64_t kMost = int64_t{1} << 53;
  for (int i = 0; i < 4; ++i)
    if (numbers[i] < 0 || numbers[i] > kMost)
      fail(op, "m, n, k or batch is " + std::to_string(numbers[i]) + "; accepted: 0 to 2^53");
  Problem p;
  p.m = numbers[0];
  p.n = numbers[1];
  p.k = numbers[2];
  p.batch = numbers[3];
  p.alpha = check_factor(op, "alpha", alpha);
  p.beta = check_factor(op, "beta", beta);
  const auto batch = [&p](int64_t stride) { return p.batch == 1 ? 0 : stride; };
  p.a = {reinterpret_cast<const float*>(numbers[7]), p.m, p.k, numbers[4], numbers[5], batch(numbers[6])};
  p.b = {reinterpret_cast<const float*>(numbers[11]), p.k, p.n, numbers[8], numbers[9], batch(numbers[10])};
  p.d = {nullptr, p.m, p.n, p.n, 1, batch(p.m * p.n)};
  if (numbers.size() == 18)
    p.c = {reinterpret_cast<const float*>(numbers[17]),
           p.m,
           p.n,
           p.m == 1 ? 0 : numbers[14],
           p.n == 1 ? 0 : numbers[15],
           batch(numbers[16])};
  p.elements_a = static_cast<ElementType>(numbers[12]);
  p.elements_b = static_cast<ElementType>(numbers[13]);
  return simplified(p);
}

std::string explain(std::vector<int64_t> problem, double alpha, double beta, std::vector<int64_t> device,
                    const std::string& name, const std::string& kernel) {
  const Device d = device_from("_explain", device, name);
  return describe_choice(backend(d.type).table, problem_of("_explain", problem, alpha, beta), d, kernel);
}

// Returns a problem for predictions, which do not read memory. `packed`: B has planes.
Problem predicted_problem(const char* op, const std::vector<int64_t>& numbers, bool packed) {
  Problem p = problem_of(op, numbers, 1, 0);
  if (packed && p.batch != 1) fail(op, "argument 'packed' is true; accepted: with one matrix, not a batch");
  if (packed && p.k > 0) p.b_planes = reinterpret_cast<void*>(uintptr_t{256});
  return p;
}

// Returns the predicted times of all plans of a row, seconds, in the order of _plans.
std::vector<double> predictions(std::vector<int64_t> problem, std::vector<int64_t> device, const std::string& kernel,
                                bool packed) {
  constexpr const char* op = "_predictions";
  const Device d = device_from(op, device, "");
  const Problem p = predicted_problem(op, problem, packed);
  std::vector<double> seconds;
  for (const Kernel& row : backend(d.type).table)
    if (kernel == row.name)
      for (const Plan& plan : sgemm::plans(row, p, d, kernel)) seconds.push_back(plan.seconds);
  return seconds;
}

// Returns the same plans as text, one line each; an empty line for a row without plans.
std::string cuts(std::vector<int64_t> problem, std::vector<int64_t> device, const std::string& kernel, bool packed) {
  constexpr const char* op = "_cuts";
  const Device d = device_from(op, device, "");
  const Problem p = predicted_problem(op, problem, packed);
  std::string lines;
  for (const Kernel& row : backend(d.type).table)
    if (kernel == row.name)
      for (const Plan& plan : sgemm::plans(row, p, d, kernel)) lines += (row.cut ? row.cut(plan) : "") + "\n";
  return lines;
}

// Returns the quantities of all models, in the order of models/models.h.
std::vector<double> model_quantities() {
  std::vector<double> all(sizeof(Models) / sizeof(double));
  std::memcpy(all.data(), &models(), sizeof(Models));
  return all;
}

void set_model_quantities(std::vector<double> all) {
  Models models;
  if (all.size() * sizeof(double) != sizeof models) fail("_set_models", "as many numbers as of _models() are accepted");
  std::memcpy(&models, all.data(), sizeof models);
  set_models(models);
}

// Replaces the limit of TORCH_SGEMM_WORKSPACE, for tests. Returns the previous value.
int64_t set_workspace(int64_t mib) {
  if (mib < 1) fail("_set_workspace", "argument 'mib' is " + std::to_string(mib) + "; accepted: at least 1");
  return workspace_mib().exchange(mib);
}

void register_plans(torch::stable::detail::StableLibrary& m) {
  m.impl("_plans", SGEMM_BOX(&plans));
  m.impl("_run_plan", SGEMM_BOX(&run_plan));
}

}  // namespace
}  // namespace sgemm

STABLE_TORCH_LIBRARY_FRAGMENT(SGEMM_NAMESPACE, m) {
  m.def("_allocate(int elements, ScalarType dtype, int index) -> Tensor?");  // implemented in Python, see
                                                                             // torch_sgemm/torch_ops/library.py
  m.def("_let_python_allocate() -> ()");
  m.def("_kernels() -> str");
  m.def("_error_bounds(int k) -> str");
  m.def("_device(int index) -> int[]");
  m.def("_redone(int index) -> int[]");
  m.def("_device_name(int index) -> str");
  m.def("_explain(int[] problem, float alpha, float beta, int[] device, str name, str kernel) -> str");
  m.def("_predictions(int[] problem, int[] device, str kernel, bool packed=False) -> float[]");
  m.def("_cuts(int[] problem, int[] device, str kernel, bool packed=False) -> str");
  m.def("_models() -> float[]");
  m.def("_set_models(float[] quantities) -> ()");
  m.def("_set_workspace(int mib) -> int");
  m.def(
      "_plans(Tensor c, Tensor a, Tensor b, str kernel, *, float alpha=1, float beta=0, Tensor? planes=None) -> "
      "float[]");
  m.def(
      "_run_plan(Tensor(a!) c, Tensor a, Tensor b, str kernel, int index, *, float alpha=1, float beta=0, "
      "Tensor? planes=None) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CPU, m) { sgemm::register_plans(m); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) { sgemm::register_plans(m); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("_let_python_allocate", SGEMM_BOX(&sgemm::let_python_allocate));
  m.impl("_kernels", SGEMM_BOX(&sgemm::kernels));
  m.impl("_error_bounds", SGEMM_BOX(&sgemm::error_bounds));
  m.impl("_device", SGEMM_BOX(&sgemm::device));
  m.impl("_device_name", SGEMM_BOX(&sgemm::device_name));
  m.impl("_redone", SGEMM_BOX(&sgemm::redone));
  m.impl("_explain", SGEMM_BOX(&sgemm::explain));
  m.impl("_predictions", SGEMM_BOX(&sgemm::predictions));
  m.impl("_cuts", SGEMM_BOX(&sgemm::cuts));
  m.impl("_models", SGEMM_BOX(&sgemm::model_quantities));
  m.impl("_set_models", SGEMM_BOX(&sgemm::set_model_quantities));
  m.impl("_set_workspace", SGEMM_BOX(&sgemm::set_workspace));
}
