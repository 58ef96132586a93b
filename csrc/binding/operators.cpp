// The operators of namespace sgemm: schemas, checks, choice, launch. Forward only; torch_sgemm/ops.py adds the fakes.
#include <torch/csrc/stable/accelerator.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "../choice_cache.h"
#include "../describe.h"
#include "checks.h"
#include "product.h"
#if defined(SGEMM_CUDA)
#include "../cuda_device.h"
#endif

namespace sgemm {
namespace {

#if defined(SGEMM_CUDA)
Backend cuda() { return cuda_backend::backend(); }
#else
int current_cuda_device() { return -1; }
int cuda_device_count() { return 0; }

const Device& cuda_device(int) {
  throw std::runtime_error("sgemm: this build has no CUDA kernels; see python -m torch_sgemm.info");
}

// The same rows, so that they can be named and explained; none can run.
Backend cuda() {
  static const std::vector<Kernel> rows = [] {
    const Table cpu = emulated_backend::backend().table;
    std::vector<Kernel> copy(cpu.begin(), cpu.end());
    for (Kernel& kernel : copy) kernel.launch = nullptr;
    return copy;
  }();
  Backend backend = {};
  backend.table = {rows.data(), static_cast<int>(rows.size())};
  backend.plane_bytes = emulated_backend::backend().plane_bytes;
  return backend;
}
#endif

// The strides of the one or two dimensions in front of the matrix: in groups, if one stride doesn't describe both.
BatchStride batch_stride(const Tensor& x) {
  if (x.dim() < 3) return 0;
  if (x.dim() == 3) return x.stride(0);
  if (x.size(0) == 1) return x.stride(1);
  if (x.size(1) == 1) return x.stride(0);
  if (x.stride(0) == x.size(1) * x.stride(1)) return x.stride(1);
  return {x.stride(0), x.size(1), x.stride(1)};
}

}  // namespace

ConstMatrix view(const Tensor& x) {
  const int64_t last = x.dim() - 1;
  return {static_cast<const float*>(x.const_data_ptr()),
          x.size(last - 1),
          x.size(last),
          x.stride(last - 1),
          x.stride(last),
          batch_stride(x)};
}

Backend backend(DeviceType type) { return type == DeviceType::kCuda ? cuda() : emulated_backend::backend(); }

namespace {

// c broadcast to the product's shape: stride 0 along the dimensions that it lacks or has only once.
ConstMatrix broadcast_view(const Tensor& c, const Problem& p) {
  const auto stride = [&c](int64_t from_last) {
    const int64_t i = c.dim() - 1 - from_last;
    return i < 0 || c.size(i) == 1 ? 0 : c.stride(i);
  };
  return {static_cast<const float*>(c.const_data_ptr()), p.m, p.n, stride(1), stride(0), stride(2)};
}

// TORCH_SGEMM_LOG=1: one line on stderr for each new combination of problem and request.
void log_choice(const char* op, const Kernel& kernel, const std::string& request, const Tensor& a, const Tensor& b) {
  static const bool enabled = [] {
    const char* text = std::getenv("TORCH_SGEMM_LOG");
    return text && *text && std::string(text) != "0";
  }();
  if (!enabled) return;
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::string line = std::string("sgemm::") + op + " a: " + describe(a) + "; b: " + describe(b) + "; kernel \"" +
                           request + "\" -> " + kernel.name;
  std::lock_guard<std::mutex> lock(mutex);
  if (seen.insert(line).second) std::fprintf(stderr, "%s\n", line.c_str());
}

// c may be null when beta is 0.
Problem problem(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
                double beta) {
  Problem p;
  p.a = view(a);
  p.b = view(b);
  p.m = p.a.rows;
  p.k = p.a.cols;
  p.n = p.b.cols;
  p.batch = 1;
  for (int64_t i = 0; i + 2 < a.dim(); ++i) p.batch *= a.size(i);
  p.alpha = check_factor(op, "alpha", alpha);
  p.beta = check_factor(op, "beta", beta);
  if (c) p.c = broadcast_view(*c, p);
  const ConstMatrix d = view(out);
  p.d = {static_cast<float*>(out.mutable_data_ptr()), d.rows, d.cols, d.row, d.col, d.batch};
  return simplified(p);
}

// For PyTorch and for the CUDA runtime; both need not be asked where there is no other one.
bool is_current(int index) {
  static const bool alone = cuda_device_count() == 1;
  return alone || (torch::stable::accelerator::getCurrentDeviceIndex() == index && current_cuda_device() == index);
}

const Choice& chosen(const char* op, const Table& table, const Problem& p, const Device& device,
                     const std::string& request, const Tensor& a, const Tensor& b) {
  thread_local ChoiceCache choices;
  try {
    return choices.choose(op, table, p, device, request);
  } catch (const std::invalid_argument& e) {
    fail(op, std::string("argument 'kernel': ") + e.what() + "; 'a' has " + describe(a) + "; 'b' has " + describe(b));
  }
}

std::optional<Tensor> workspace_of(size_t bytes, const Tensor& like) {
  if (bytes == 0) return std::nullopt;
  return empty({static_cast<int64_t>(ceil_div(bytes, sizeof(float)))}, like);
}

const Device& device_of(const Tensor& x) {
  static const Device cpu;
  return x.is_cuda() ? cuda_device(x.get_device_index()) : cpu;
}

void launch(const Backend& rows, const Kernel& kernel, const Problem& p, const Plan& plan, const Device& device,
            const Tensor& out) {
  std::optional<torch::stable::accelerator::DeviceGuard> guard;  // where needed: it takes 0.3 us
  if (out.is_cuda() && !is_current(out.get_device_index())) guard.emplace(out.get_device_index());
  const auto workspace = workspace_of(workspace_bytes(kernel, p, plan), out);
  const Context context = {current_stream(out), &device, workspace ? workspace->mutable_data_ptr() : nullptr};
  run(rows, kernel, p, plan, context);
}

}  // namespace

void product(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
             double beta, const std::string& request, Activation activation, const Tensor* planes) {
  Problem p = problem(op, out, c, a, b, alpha, beta);
  p.activation = activation;
  if (planes && p.k > 0) p.b_planes = planes->mutable_data_ptr();
  const Device& device = device_of(out);
  const Backend& rows = backend(device.type);
  const Choice& choice = chosen(op, rows.table, p, device, request, a, b);
  const Kernel& kernel = *choice.kernel;
  log_choice(op, kernel, request, a, b);
  if (out.numel() == 0) return;
  const ProfiledRange range(choice.label.c_str());
  if (is_aten(kernel)) {
    aten_product(out, c, a, b, alpha, beta);
    return aten_activation(out, activation);
  }

  launch(rows, kernel, p, choice.plan, device, out);
}

Tensor new_output(const Tensor& a, const Tensor& b) {
  switch (a.dim()) {
    case 2:
      return empty({a.size(0), b.size(1)}, a);
    case 3:
      return empty({a.size(0), a.size(1), b.size(2)}, a);
    default:
      return empty({a.size(0), a.size(1), a.size(2), b.size(3)}, a);
  }
}

namespace {

void check_output(const char* op, const char* name, const Tensor& out, const Tensor& a, const Tensor& b) {
  check_tensor(op, name, out, a, static_cast<int>(a.dim()));
  check_shape(op, name, out, a, b);
  check_writable(op, name, out);
  check_no_overlap(op, name, out, "a", a);
  check_no_overlap(op, name, out, "b", b);
}

// After all checks.
void begin_writing(const char* op, const char* name, const Tensor& out) {
  try {
    count_change(out);
  } catch (const TorchError&) {
    fail(op, std::string("argument '") + name +
                 "' is an inference tensor, or a view of one that requires grad; accepted: a tensor that PyTorch lets "
                 "an operator write here");
  }
}

// Each operator once for matrices (DIMS = 2) and once for batches of them (3); mm also for batches of two dimensions
// (4).
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
    begin_writing(op, "out", out);
    product(op, out, nullptr, a, b, 1, 0, kernel);
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
    begin_writing(op, "out", out);
    product(op, out, &c, a, b, alpha, beta, kernel);
  }
};

void gemm_(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, double alpha, double beta) {
  check_inputs("gemm_", a, b, a.dim() == 3 ? 3 : 2);
  check_output("gemm_", "c", c, a, b);
  begin_writing("gemm_", "c", c);
  product("gemm_", c, &c, a, b, alpha, beta, kernel);
}

// A row's plans for c = alpha a b + beta c, and that product by one of them: for tests and for measuring.
struct Planned {
  Problem p;
  const Device& device;
  Backend rows;
  const Kernel& kernel;
  std::vector<Plan> plans;

  Planned(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, const std::string& name, double alpha,
          double beta)
      : p(checked(op, c, a, b, alpha, beta)),
        device(device_of(c)),
        rows(backend(device.type)),
        kernel(*chosen(op, rows.table, p, device, name, a, b).kernel) {
    if (name != kernel.name) fail(op, "argument 'kernel' is \"" + name + "\"; accepted: a row's name");
    if (!is_aten(kernel)) plans = sgemm::plans(kernel, p, device);
  }

 private:
  static Problem checked(const char* op, const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta) {
    check_inputs(op, a, b, a.dim() == 3 ? 3 : 2);
    check_output(op, "c", c, a, b);
    return problem(op, c, &c, a, b, alpha, beta);
  }
};

// The predicted times of a row's plans, in seconds.
std::vector<double> plans(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, double alpha,
                          double beta) {
  std::vector<double> seconds;
  for (const Plan& plan : Planned("_plans", c, a, b, kernel, alpha, beta).plans) seconds.push_back(plan.seconds);
  return seconds;
}

void run_plan(const Tensor& c, const Tensor& a, const Tensor& b, const std::string& kernel, int64_t index, double alpha,
              double beta) {
  constexpr const char* op = "_run_plan";
  const Planned planned(op, c, a, b, kernel, alpha, beta);
  const int64_t count = static_cast<int64_t>(planned.plans.size());
  if (index < 0 || index >= count)
    fail(op, "argument 'index' is " + std::to_string(index) + "; accepted: 0 to " + std::to_string(count - 1) +
                 ", the plans that \"" + kernel + "\" has here");
  begin_writing(op, "c", c);
  if (c.numel() == 0) return;
  launch(planned.rows, planned.kernel, planned.p, planned.plans[static_cast<size_t>(index)], planned.device, c);
}

// The rest serves torch_sgemm/table.py.

std::string kernels() { return describe_table(emulated_backend::backend().table, cuda().table); }

std::string error_bounds(int64_t k) { return describe_bounds(cuda().table, k); }

// {cuda or not, arch, SMs, clock in kHz, bandwidth in MB/s, L2 in bytes, the code's arch}
std::vector<int64_t> device(int64_t index) {
  const Device& d = cuda_device(static_cast<int>(index));
  return {
      1,          d.arch, d.sms, int64_t(d.clock_ghz * 1e6), int64_t(d.bandwidth_gbs * 1e3), int64_t(d.l2_mb * 1048576),
      d.code_arch};
}

// {elements, tiles} that the split family's guard had redone on a device
std::vector<int64_t> redone(int64_t index) {
  const auto redone = cuda().redone;
  if (!redone)
    throw std::runtime_error("sgemm: this build has no kernels of the family split; see python -m torch_sgemm.info");
  const torch::stable::accelerator::DeviceGuard guard(static_cast<torch::stable::accelerator::DeviceIndex>(index));
  const Redone counts = redone();
  return {static_cast<int64_t>(counts.elements), static_cast<int64_t>(counts.tiles)};
}

// problem: {m, n, k, batch, then for a and for b: row, column and batch stride and the address modulo 16}
std::string explain(std::vector<int64_t> problem, double alpha, double beta, std::vector<int64_t> device,
                    const std::string& kernel) {
  if (problem.size() != 12 || device.size() != 7)
    fail("_explain", "12 numbers of the problem and 7 of the device are accepted");
  Problem p;
  p.m = problem[0];
  p.n = problem[1];
  p.k = problem[2];
  p.batch = problem[3];
  p.alpha = check_factor("_explain", "alpha", alpha);
  p.beta = check_factor("_explain", "beta", beta);
  p.a = {reinterpret_cast<const float*>(problem[7]), p.m, p.k, problem[4], problem[5], problem[6]};
  p.b = {reinterpret_cast<const float*>(problem[11]), p.k, p.n, problem[8], problem[9], problem[10]};
  const DeviceType type = device[0] ? DeviceType::kCuda : DeviceType::kCpu;
  const Device d = {
      type, int(device[1]), int(device[2]), device[3] * 1e-6, device[4] * 1e-3, device[5] / 1048576.0, int(device[6])};
  return describe_choice(backend(type).table, p, d, kernel);
}

void register_products(torch::stable::detail::StableLibrary& m) {
  m.impl("mm", TORCH_BOX(&Operators<2>::mm));
  m.impl("mm_out", TORCH_BOX(&Operators<2>::mm_out));
  m.impl("addmm", TORCH_BOX(&Operators<2>::addmm));
  m.impl("addmm_out", TORCH_BOX(&Operators<2>::addmm_out));
  m.impl("bmm", TORCH_BOX(&Operators<3>::mm));
  m.impl("bmm_out", TORCH_BOX(&Operators<3>::mm_out));
  m.impl("baddbmm", TORCH_BOX(&Operators<3>::addmm));
  m.impl("baddbmm_out", TORCH_BOX(&Operators<3>::addmm_out));
  m.impl("gemm_", TORCH_BOX(&gemm_));
  m.impl("_matmul", TORCH_BOX(&Operators<4>::mm));
  m.impl("_plans", TORCH_BOX(&plans));
  m.impl("_run_plan", TORCH_BOX(&run_plan));
}

}  // namespace
}  // namespace sgemm

// `kernel` may be positional: Inductor can't pass on a keyword-only argument of that name.
STABLE_TORCH_LIBRARY(sgemm, m) {
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
  m.def("_kernels() -> str");
  m.def("_error_bounds(int k) -> str");
  m.def("_device(int index) -> int[]");
  m.def("_matmul(Tensor a, Tensor b, str kernel=\"auto\") -> Tensor");  // without derivatives, see functional.py
  m.def("_plans(Tensor c, Tensor a, Tensor b, str kernel, *, float alpha=1, float beta=0) -> float[]");
  m.def("_run_plan(Tensor(a!) c, Tensor a, Tensor b, str kernel, int index, *, float alpha=1, float beta=0) -> ()");
  m.def("_redone(int index) -> int[]");
  m.def("_explain(int[] problem, float alpha, float beta, int[] device, str kernel) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(sgemm, CPU, m) { sgemm::register_products(m); }

STABLE_TORCH_LIBRARY_IMPL(sgemm, CUDA, m) { sgemm::register_products(m); }

STABLE_TORCH_LIBRARY_IMPL(sgemm, CompositeExplicitAutograd, m) {
  m.impl("_kernels", TORCH_BOX(&sgemm::kernels));
  m.impl("_error_bounds", TORCH_BOX(&sgemm::error_bounds));
  m.impl("_device", TORCH_BOX(&sgemm::device));
  m.impl("_redone", TORCH_BOX(&sgemm::redone));
  m.impl("_explain", TORCH_BOX(&sgemm::explain));
}
