#include "dispatch.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "common/views.h"

namespace sgemm {
namespace {

constexpr double kLaunchSeconds = 3e-6;
// cuBLAS's best share of the FFMA peak on an H200, and that with few rows or columns of one product.
constexpr double kAtenEfficiency = 0.82, kAtenNarrowEfficiency = 0.72;
constexpr int64_t kAtenNarrow = 128;
// Its tiles: a side is filled up to a multiple of the first, beyond 64 to 128; to a multiple of 128 in batches, and
// where parts of a long k are added up.
constexpr int64_t kAtenWidth = 32, kAtenWide = 128, kAtenLong = 4096;
// Two rows take so much longer than one, the first where both operands lie along k.
constexpr double kAtenTwoRowsAlongK = 1.35, kAtenTwoRows = 2, kAtenTwoRowsSeconds = 2e-6;
constexpr double kAtenNarrowBatches = 1.2;  // up to 64 rows or columns
// An element of k takes cuBLAS at least so long, up to a k that it divides, and in batches.
constexpr double kAtenElementSeconds = 24e-9, kAtenBatchElementSeconds = 40e-9;
constexpr int64_t kAtenUndivided = 640;
// To add up parts of k; for a very long k, and up to kAtenFew rows or columns.
constexpr double kAtenSplitSeconds = 6e-6, kAtenVeryLongSplitSeconds = 7.5e-6, kAtenFewSplitSeconds = 3.3e-6;
constexpr int64_t kAtenFew = 4, kAtenVeryLong = 7168;
// The share of that time which the smallest outputs take, all of it less so many elements, and always up to
// kAtenSkinny.
constexpr double kAtenSplitLeast = 0.4, kAtenSplitOutputs = 110000;
constexpr int64_t kAtenSkinny = 16;
constexpr int kThreadsToFill = 512;    // a multiprocessor needs about as many to reach a row's measured efficiency
constexpr double kScatteredReads = 2;  // a row that reads element by element, along the wrong dimension

// On CPU tensors a family chooses as for this GPU: the tests there then run what a GPU runs.
constexpr Device kH200 = {DeviceType::kCuda, 90, 132, 1.98, 4300, 60};

double ffma_peak(const Device& device) { return device.sms * 128 * 2 * device.clock_ghz * 1e9; }

double bytes(const Problem& p) {
  return 4.0 * p.batch * (double(p.m) * p.k + double(p.k) * p.n + double(p.m) * p.n * (p.beta != 0 ? 2 : 1));
}

double flops(const Problem& p) { return 2.0 * p.batch * p.m * p.n * p.k; }

size_t bytes_of_copies(const Packing& packing) { return sizeof(float) * (packing.floats_a + packing.floats_b); }

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Rows of whole float4s; what is added is zero.
int64_t packed_cols(const ConstMatrix& x) { return ceil_div(x.cols, 4) * 4; }

int64_t tiles(const Kernel& kernel, const Problem& p) {
  return ceil_div(p.m, kernel.bm) * ceil_div(p.n, kernel.bn) * p.batch;
}

// PyTorch's kernel a little faster than it was measured on an H200, so that no other row is preferred on a guess.
// Matrix times vector reads at full speed. A product proper is computed in tiles, has little use for few rows, columns
// or a short k, and adds up parts of a long k if there are few tiles.
double aten_seconds(const Problem& p, const Device& device) {
  const double bandwidth = device.bandwidth_gbs * 1e9;
  const int64_t narrow = std::min(p.m, p.n);
  if (narrow <= 2) {
    const double row = std::max(flops(p) / (kAtenEfficiency * ffma_peak(device)), bytes(p) / bandwidth);
    if (narrow < 2) return kLaunchSeconds + row;
    const bool along_k = p.m == 2 && p.a.col == 1 && p.b.row == 1;
    return kLaunchSeconds + (along_k ? kAtenTwoRowsAlongK : kAtenTwoRows) * row + std::min(row, kAtenTwoRowsSeconds);
  }
  const bool few_tiles = p.batch == 1 && double(p.m) * p.n < device.sms * 4096.0 && p.k >= 1024;
  const auto padded = [&](int64_t x) {
    const bool wide = x > 64 && (x <= kAtenWide || p.batch > 1 || (few_tiles && p.k >= kAtenLong));
    const int64_t width = wide ? kAtenWide : kAtenWidth;
    return ceil_div(x, width) * width;
  };
  const int64_t m = padded(p.m), n = padded(p.n);
  const double efficiency = p.batch == 1 && std::min(m, n) <= kAtenNarrow ? kAtenNarrowEfficiency : kAtenEfficiency;
  const double compute = 2.0 * p.batch * m * n * (p.k + 40.0) / (efficiency * ffma_peak(device));
  double steps = 0;  // of a tile, one after the other
  if (p.batch > 1 && narrow >= kAtenWidth) steps = kAtenBatchElementSeconds * p.k;
  if (p.batch == 1 && narrow > kAtenNarrow && p.k <= kAtenUndivided) steps = kAtenElementSeconds * p.k;
  const double read = bytes(p) / ((p.batch > 1 ? 0.6 : 0.5) * bandwidth);
  const double long_split = p.k < kAtenVeryLong ? kAtenSplitSeconds : kAtenVeryLongSplitSeconds;
  const double part =
      narrow <= kAtenSkinny ? 1 : std::min(1.0, kAtenSplitLeast + double(p.m) * p.n / kAtenSplitOutputs);
  const double split = !few_tiles ? 0 : narrow <= kAtenFew ? kAtenFewSplitSeconds : part * long_split;
  const double narrow_batches = p.batch > 1 && narrow <= 64 && std::max(p.m, p.n) > 64 ? kAtenNarrowBatches : 1;
  return std::max(kLaunchSeconds + narrow_batches * std::max(compute, read) + split, 1e-6 + steps);
}

// Operands are copied first for a row that can't read them as they lie, and for PyTorch's kernel in a batch of two
// strides.
double copying_seconds(const Kernel& kernel, const Problem& p, const Device& device) {
  const Packing packed = plan(kernel, p);
  const auto elements = [&](const ConstMatrix& x, int64_t floats) {
    return is_aten(kernel) && x.batch.group ? p.batch * x.rows * x.cols : floats;
  };
  double seconds = 0;
  for (int64_t count : {elements(p.a, packed.floats_a), elements(p.b, packed.floats_b)})
    if (count) seconds += kLaunchSeconds + 8.0 * count / (device.bandwidth_gbs * 1e9);
  return seconds;
}

// The busiest multiprocessor does its tiles at the row's measured share of the FFMA peak, less where its tiles have too
// few threads to hide latency; memory sets a floor.
double row_seconds(const Kernel& kernel, const Problem& p, const Device& device) {
  const double busiest = std::max<int64_t>(1, ceil_div(tiles(kernel, p), device.sms));
  const double fill = std::min(1.0, busiest * kernel.threads / kThreadsToFill);
  const double tile_flops = 2.0 * kernel.bm * kernel.bn * kernel.bk * ceil_div(p.k, kernel.bk);
  double compute = busiest * tile_flops * device.sms / (ffma_peak(device) * kernel.efficiency * fill);
  if (kernel.reads == Reads::kAnyStrides) {
    if (p.a.col != 1) compute *= kScatteredReads;
    if (p.b.col != 1) compute *= kScatteredReads;
  }
  return kLaunchSeconds + std::max(compute, bytes(p) / (device.bandwidth_gbs * 1e9));
}

// PyTorch's kernel is followed by a pass over D as well.
double activation_seconds(const Kernel& kernel, const Problem& p, const Device& device) {
  if (p.activation == Activation::kNone || kernel.activates) return 0;
  return kLaunchSeconds + 8.0 * p.batch * p.m * p.n / (device.bandwidth_gbs * 1e9);
}

const char* unusable(const Kernel& kernel, const Problem& p, const Device& device, const std::string& request) {
  const bool cuda = device.type == DeviceType::kCuda;
  const bool in_family = !is_aten(kernel) && request == kernel.family;
  if (request != "auto" && !in_family && request != kernel.name) return "not asked for";
  if (is_aten(kernel)) return nullptr;
  if (request == "auto" && !cuda) return "on CPU tensors auto is PyTorch's own kernel";
  // It adds up a long k in one go, with larger errors than PyTorch's kernel.
  if (request == "auto" && kernel.family == std::string("ladder")) return "the ladder is taken by name only";
  if (!kernel.launch) return cuda ? "not built for CUDA devices" : "not built for the CPU";
  if (cuda && device.arch < kernel.min_arch) return "the device's architecture is too low";
  if (cuda && device.arch > kernel.max_arch) return "the device's architecture is too high";
  if (kernel.max_size && std::max({p.m, p.n, p.k}) > kernel.max_size) return "m, n or k is larger than it takes";
  if (tiles(kernel, p) > std::numeric_limits<int32_t>::max()) return "more than 2^31 - 1 tiles";
  return nullptr;
}

int edit_distance(const std::string& x, const std::string& y) {
  std::vector<int> row(y.size() + 1);
  for (size_t j = 0; j <= y.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= x.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= y.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (x[i - 1] != y[j - 1])});
      diagonal = above;
    }
  }
  return row[y.size()];
}

// What a row for small problems would have accepted.
std::string limit(const Kernel& kernel) {
  return kernel.max_size ? "; accepted: m, n and k up to " + std::to_string(kernel.max_size) : "";
}

[[noreturn]] void fail(const Table& table, const Problem& p, const Device& device, const std::string& request) {
  for (const Kernel& kernel : table)
    if (const char* reason = request == kernel.name ? unusable(kernel, p, device, request) : nullptr)
      throw std::invalid_argument("kernel \"" + request + "\" can't take this problem: " + reason + limit(kernel));
  std::vector<std::string> names = {"auto"};
  for (const Kernel& kernel : table) {
    if (!is_aten(kernel) && request == kernel.family)
      throw std::invalid_argument("no row of the family \"" + request + "\" can take this problem");
    for (const char* name : {kernel.family, kernel.name})
      if (*name && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  // A name that was cut short is as near as one with a letter wrong.
  const auto distance = [&request](const std::string& name) {
    return std::min(edit_distance(request, name), 1 + edit_distance(request, name.substr(0, request.size())));
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& x, const std::string& y) { return distance(x) < distance(y); });
  throw std::invalid_argument("kernel \"" + request + "\" is unknown; the nearest names are \"" + names[0] + "\", \"" +
                              names[1] + "\", \"" + names[2] +
                              "\"; accepted: \"auto\", a family, or a name of torch_sgemm.kernels()");
}

}  // namespace

bool is_aten(const Kernel& kernel) { return *kernel.family == '\0'; }

Verdict judge(const Kernel& kernel, const Problem& p, const Device& device, const std::string& request) {
  const Device& model = device.type == DeviceType::kCpu ? kH200 : device;
  const double seconds = is_aten(kernel)  ? aten_seconds(p, model)
                         : kernel.seconds ? kernel.seconds(p, model)
                                          : row_seconds(kernel, p, model);
  return {&kernel, seconds + copying_seconds(kernel, p, model) + activation_seconds(kernel, p, model),
          unusable(kernel, p, device, request)};
}

const Kernel& choose(const Table& table, const Problem& p, const Device& device, const std::string& request) {
  const Kernel* best = nullptr;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const Kernel& kernel : table) {
    if (unusable(kernel, p, device, request)) continue;
    const double seconds = judge(kernel, p, device, request).seconds;
    if (seconds < best_seconds) {
      best = &kernel;
      best_seconds = seconds;
    }
  }
  if (!best) fail(table, p, device, request);
  return *best;
}

Problem simplified(Problem p) {
  if (p.k == 0 || p.alpha == 0) {
    p.k = p.a.cols = p.b.rows = 0;
    p.alpha = 0;
  }
  return p;
}

Packing plan(const Kernel& kernel, const Problem& p) {
  Packing packing = {};
  if (is_aten(kernel) || p.k == 0) return packing;
  const auto packed = [&kernel](const ConstMatrix& x) {
    return (kernel.reads == Reads::kAlignedRows && !has_quads(x)) || (kernel.only_one_stride && x.batch.group);
  };
  packing.a = packed(p.a);
  packing.b = packed(p.b);
  if (packing.a) packing.floats_a = matrices(p.a, p.batch) * p.m * packed_cols(p.a);
  if (packing.b) packing.floats_b = matrices(p.b, p.batch) * p.k * packed_cols(p.b);
  return packing;
}

size_t workspace_bytes(const Kernel& kernel, const Problem& p, const Device& device) {
  return aligned(bytes_of_copies(plan(kernel, p))) + (kernel.workspace ? kernel.workspace(p, device) : 0);
}

void run(const Backend& backend, const Kernel& kernel, Problem p, Context context) {
  const Packing packing = plan(kernel, p);
  const auto pack = [&](ConstMatrix& x, float* copy) {
    const int64_t cols = packed_cols(x), count = matrices(x, p.batch);
    const Matrix target = {copy, x.rows, cols, cols, 1, count == 1 ? 0 : x.rows * cols};
    backend.pack(x, target, count, context.stream);
    x = {copy, x.rows, cols, cols, 1, target.batch};
  };
  float* copies = static_cast<float*>(context.workspace);
  if (packing.a) pack(p.a, copies);
  if (packing.b) pack(p.b, copies + packing.floats_a);
  if (context.workspace) context.workspace = static_cast<char*>(context.workspace) + aligned(bytes_of_copies(packing));
  if (kernel.activates || p.activation == Activation::kNone) return kernel.launch(p, context);
  Problem inner = p;
  inner.activation = Activation::kNone;
  kernel.launch(inner, context);
  backend.activate(p, context);
}

}  // namespace sgemm
