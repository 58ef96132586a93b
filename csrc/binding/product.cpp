// From checked arguments to a launch: problem, choice, workspace, stream.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "../table/launch.h"
#include "../table/namespace.h"
#include "checks.h"
#include "product.h"
#if defined(SGEMM_CUDA)
#include "../models/cuda_device.h"
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

// The same rows without launches, for builds without CUDA: they can be named and explained, but not run.
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

// Returns the stride of the one or two dimensions in front of the matrix. Two dimensions form groups if one stride
// doesn't describe both. A batch of one has stride 0.
BatchStride batch_stride(const Tensor& x) {
  const auto stride = [&x](int64_t i) { return x.size(i) == 1 ? 0 : x.stride(i); };
  if (x.dim() < 3) return 0;
  if (x.dim() == 3) return stride(0);
  if (x.size(0) == 1) return stride(1);
  if (x.size(1) == 1) return stride(0);
  if (x.stride(0) == x.size(1) * x.stride(1)) return x.stride(1);
  return {x.stride(0), x.size(1), x.stride(1)};
}

// Broadcasts c to the product's shape, with stride 0 along dimensions that are missing or of size one.
ConstMatrix broadcast_view(const Tensor& c, const Problem& p) {
  const auto stride = [&c](int64_t from_last) {
    const int64_t i = c.dim() - 1 - from_last;
    return i < 0 || c.size(i) == 1 ? 0 : c.stride(i);
  };
  return {static_cast<const float*>(c.const_data_ptr()), p.m, p.n, stride(1), stride(0), stride(2)};
}

// TORCH_SGEMM_LOG=1: prints one line to stderr for each new combination of problem and request.
void log_choice(const char* op, const Kernel& kernel, const std::string& request, const Tensor& a, const Tensor& b) {
  static const bool enabled = [] {
    const char* text = std::getenv("TORCH_SGEMM_LOG");
    return text && *text && std::string(text) != "0";
  }();
  if (!enabled) return;
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::string line = std::string(kOperators) + op + " a: " + describe(a) + "; b: " + describe(b) + "; kernel \"" +
                           request + "\" -> " + kernel.name;
  std::lock_guard<std::mutex> lock(mutex);
  if (seen.insert(line).second) std::fprintf(stderr, "%s\n", line.c_str());
}

// Returns true if `index` is the current device of both PyTorch and the CUDA runtime. Always true with one GPU.
bool is_current(int index) {
  static const bool alone = cuda_device_count() == 1;
  return alone || (torch::stable::accelerator::getCurrentDeviceIndex() == index && current_cuda_device() == index);
}

Matrix writable_view(const Tensor& x) {
  const ConstMatrix d = view(x);
  return {static_cast<float*>(x.mutable_data_ptr()), d.rows, d.cols, d.row, d.col, d.batch};
}

// Returns the tensor itself if it is float32, otherwise a float32 copy.
Tensor in_float32(const Tensor& x) { return torch::stable::to(x, torch::headeronly::ScalarType::Float); }

std::optional<Tensor> workspace_of(size_t bytes, const Tensor& like) {
  if (bytes == 0) return std::nullopt;
  return empty({static_cast<int64_t>(ceil_div(bytes, sizeof(float)))}, like);
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

Problem problem(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
                double beta) {
  Problem p;
  p.a = view(a);
  p.b = view(b);
  p.m = p.a.rows;
  p.k = p.a.cols;
  p.elements_a = elements(a);
  p.elements_b = elements(b);
  p.n = p.b.cols;
  p.batch = 1;
  for (int64_t i = 0; i + 2 < a.dim(); ++i) p.batch *= a.size(i);
  p.alpha = check_factor(op, "alpha", alpha);
  p.beta = check_factor(op, "beta", beta);
  if (c) p.c = broadcast_view(*c, p);
  p.d = writable_view(out);
  return simplified(p);
}

const Choice& chosen(const char* op, const Table& table, const Problem& p, const Device& device,
                     const std::string& request, const Tensor& a, const Tensor& b, const OperandNames& names) {
  thread_local ChoiceCache choices;
  try {
    return choices.choose(op, table, p, device, request);
  } catch (const std::invalid_argument& e) {
    fail(op, std::string("argument 'kernel': ") + e.what() + "; " + names.a + " has " + describe(a) + "; " + names.b +
                 " has " + describe(b));
  }
}

const Device& device_of_index(int index) { return cuda_device(index); }

Device device_from(const char* op, const std::vector<int64_t>& numbers, const std::string& name) {
  if (numbers.size() != 8) fail(op, "8 numbers of the device are accepted");
  const DeviceType type = numbers[0] ? DeviceType::kCuda : DeviceType::kCpu;
  for (const int i : {1, 2, 6})
    if (numbers[i] < (i == 2 && type == DeviceType::kCuda) || numbers[i] > std::numeric_limits<int>::max())
      fail(op, "the device's arch, SMs or code_arch is " + std::to_string(numbers[i]) +
                   "; accepted: whole numbers up to " + std::to_string(std::numeric_limits<int>::max()) +
                   ", of SMs at least 1");
  Device device = {type,
                   int(numbers[1]),
                   int(numbers[2]),
                   numbers[3] * 1e-6,
                   numbers[4] * 1e-3,
                   numbers[5] / 1048576.0,
                   int(numbers[6]),
                   numbers[7] * 1e-6};
  if (!(device.tensor_rate > 0)) fail(op, "the device's tensor rate is accepted above 0");
  name.copy(device.name, sizeof device.name - 1);
  return device;
}

const Device& device_of(const Tensor& x) {
  static const Device cpu;
  return x.is_cuda() ? cuda_device(x.get_device_index()) : cpu;
}

void launch(const Backend& rows, const Kernel& kernel, const Problem& p, const Plan& plan, const Device& device,
            const Tensor& out, const Tensor* activated) {
  std::optional<torch::stable::accelerator::DeviceGuard> guard;  // only if needed: it takes 0.3 us
  if (out.is_cuda() && !is_current(out.get_device_index())) guard.emplace(out.get_device_index());
  const auto workspace = workspace_of(plan.bytes(), out);
  const Context context = {current_stream(out), &device, workspace ? workspace->mutable_data_ptr() : nullptr};
  if (!activated) return launch(rows, kernel, p, plan, context);
  const Matrix into = writable_view(*activated);
  launch(rows, kernel, p, plan, context, &into);
}

void product(const char* op, const Tensor& out, const Tensor* c, const Tensor& a, const Tensor& b, double alpha,
             double beta, const std::string& request, const ProductExtras& extras) {
  const Tensor& sum = extras.inner ? *extras.inner : out;
  Problem p = problem(op, sum, c, a, b, alpha, beta);
  p.activation = extras.activation;
  if (extras.planes && p.k > 0) p.b_planes = extras.planes->mutable_data_ptr();
  const Device& device = device_of(out);
  const Backend& rows = backend(device.type);
  const Choice& choice = chosen(op, rows.table, p, device, request, a, b, extras.names);
  const Kernel& kernel = *choice.kernel;
  log_choice(op, kernel, request, a, b);
  if (extras.written) begin_writing(op, extras.written, out);
  if (out.numel() == 0) return;
  const ProfiledRange range(choice.label.c_str());
  if (is_aten(kernel)) {
    const Tensor* const addend = c || alpha == 1 ? c : &sum;  // beta is 0 without c, so that it isn't read
    aten_product(sum, addend, in_float32(a), in_float32(b), alpha, beta);
    return aten_activation(out, sum, extras.activation);
  }
  // Copies the plan: allocating a workspace may run Python, whose own products may replace the choice in the cache.
  const Plan plan = choice.plan;
  launch(rows, kernel, p, plan, device, sum, extras.inner ? &out : nullptr);
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

}  // namespace sgemm
