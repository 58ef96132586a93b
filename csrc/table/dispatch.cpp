#include "dispatch.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>

#include "../models/aten.h"
#include "../problem/fastest.h"
#include "../models/models.h"
#include "../problem/views.h"
#include "packing.h"
#include "tuned.h"

namespace sgemm {
namespace {

constexpr int kThreadsToFill = 512;  // threads per SM that a row needs, approximately, to reach its measured efficiency

double ffma_peak(const Device& device) { return device.sms * 128 * 2 * device.clock_ghz * 1e9; }

int64_t tiles(const Kernel& kernel, const Problem& p) {
  return ceil_div(p.m, kernel.bm) * ceil_div(p.n, kernel.bn) * p.batch;
}

// Predicted time of operand copies: for rows that can't read an operand directly, and for PyTorch's kernel if a batch
// has two strides.
double copying_seconds(const Kernel& kernel, const Problem& p, const Device& device, const Packing& packed) {
  const auto elements = [&](const ConstMatrix& x, int64_t floats) {
    return is_aten(kernel) && x.batch.group ? p.batch * x.rows * x.cols : floats;
  };
  double seconds = 0;
  for (int64_t count : {elements(p.a, packed.floats_a), elements(p.b, packed.floats_b)})
    if (count) seconds += models().choice.launch + 8.0 * count / (device.bandwidth_gbs * 1e9);
  return seconds;
}

// The busiest SM computes its tiles at the row's measured share of the FFMA peak, and slower if they have too few
// threads to hide latency. Memory bandwidth sets a lower bound.
double row_seconds(const Kernel& kernel, const Problem& p, const Device& device) {
  const double busiest = std::max<int64_t>(1, ceil_div(tiles(kernel, p), device.sms));
  const double fill = std::min(1.0, busiest * kernel.threads / kThreadsToFill);
  const double tile_flops = 2.0 * kernel.bm * kernel.bn * kernel.bk * ceil_div(p.k, kernel.bk);
  double compute = busiest * tile_flops * device.sms / (ffma_peak(device) * kernel.efficiency * fill);
  if (kernel.reads == Reads::kAnyStrides) {
    if (p.a.col != 1) compute *= models().choice.scattered;
    if (p.b.col != 1) compute *= models().choice.scattered;
  }
  return models().choice.launch + std::max(compute, bytes(p) / (device.bandwidth_gbs * 1e9));
}

// Predicted time of a separate activation kernel over D, which also follows PyTorch's kernel.
double activation_seconds(const Kernel& kernel, const Problem& p, const Device& device) {
  if (p.activation == Activation::kNone || kernel.activates) return 0;
  return models().choice.launch + 8.0 * p.batch * p.m * p.n / (device.bandwidth_gbs * 1e9);
}

// Returns the tile that a request names; -1 if the request leaves the tile to the plan.
int named_tile(const Kernel& kernel, const std::string& request) {
  for (int tile = 0; tile < kernel.tile_count; ++tile)
    if (request == tile_name(kernel, tile)) return tile;
  return -1;
}

// Calls `visit` with the plans of a planned row, or only with the plans of one tile.
template <class Visit>
void visit_plans(const Kernel& kernel, const Problem& p, const Device& model, int tile, const Visit& visit) {
  kernel.each_plan(p, model, [&](const Plan& plan) {
    if (tile < 0 || plan.tile == tile) visit(plan);
  });
}

// Returns the plan with the shortest predicted time; only plans with the tile that the request names, if any.
Plan planned(const Kernel& kernel, const Problem& p, const Device& model, const std::string& request) {
  if (is_aten(kernel)) return Plan(aten_seconds(p, model));
  if (!kernel.plan) return Plan(row_seconds(kernel, p, model), kernel.workspace ? kernel.workspace(p, model) : 0);
  if (request == kBatchInvariant && kernel.invariant_plan) return kernel.invariant_plan(p, model);
  const int tile = named_tile(kernel, request);
  if (tile < 0) return kernel.plan(p, model);
  return fastest<Plan>([&](const auto& visit) { visit_plans(kernel, p, model, tile, visit); });
}

// Returns the reason why a row can't read the operands as bfloat16, or null.
const char* unlike_bfloat16(const Problem& p) {
  if (p.elements_a != ElementType::kBFloat16 || p.elements_b != ElementType::kBFloat16)
    return "takes operands that are both bfloat16";
  const auto mapped = [&](const ConstMatrix& operand) {
    const Matrix16 x = in_16_bits(operand);
    return can_be_mapped(x, matrices(x, p.batch)) || can_be_mapped(transposed(x), matrices(x, p.batch));
  };
  if (p.k > 0 && !(mapped(p.a) && mapped(p.b))) return "rows of bfloat16 operands don't begin at multiples of 16 bytes";
  return nullptr;
}

const char* cannot_run(const Kernel& kernel, const Device& device) {
  const bool cuda = device.type == DeviceType::kCuda;
  if (!kernel.launch) return cuda ? "not built for CUDA devices" : "not built for the CPU";
  if (cuda && device.arch < kernel.min_arch) return "the device's architecture is too low";
  if (cuda && device.arch > kernel.max_arch) return "the device's architecture is too high";
  if (cuda && device.code_arch < kernel.min_arch) return "not built for the device's architecture";
  return nullptr;
}

const char* unusable(const Kernel& kernel, const Problem& p, const Device& device, const std::string& request) {
  const bool cuda = device.type == DeviceType::kCuda;
  const bool in_family = !is_aten(kernel) && request == kernel.family;
  if (request == kBatchInvariant) {
    if (!kernel.batch_invariant) return "an element's bits depend on m, the batch or other rows' data";
  } else if (request != kAuto && !in_family && !is_named(kernel, request)) {
    return "not asked for";
  }
  if (is_aten(kernel)) return nullptr;
  if (request == kAuto && !cuda) return "on CPU tensors auto is PyTorch's own kernel";
  // These rows add up a long k in one chain; its errors and its error bound are larger than "auto" promises.
  if (request == kAuto && !kernel.in_auto) return "taken by its name or family only";
  if (request == kAuto && p.k < kernel.auto_from) return "sums of so few terms have larger errors than auto promises";
  if (kernel.most_rows && !is_named(kernel, request) && std::min(p.m, p.n) > kernel.most_rows)
    return "m and n are both larger than it is fast for";
  if (const char* reason = cannot_run(kernel, device)) return reason;
  if (kernel.max_size && std::max({p.m, p.n, p.k}) > kernel.max_size) return "m, n or k is larger than it takes";
  if (tiles(kernel, p) > std::numeric_limits<int32_t>::max()) return "more than 2^31 - 1 tiles";
  if (kernel.reads == Reads::kMappedBFloat16) return unlike_bfloat16(p);
  return nullptr;
}

// Predicted time of a row with a plan, including the work before and after it.
double seconds_with(const Kernel& kernel, const Problem& p, const Device& device, const Plan& plan) {
  const Device& model = model_of(device);
  const double product = plan.seconds * (is_aten(kernel) ? aten_caution(p) : 1);
  return product + copying_seconds(kernel, p, model, plan.packing) + activation_seconds(kernel, p, model);
}

// Returns nothing if the row can't take the problem, or if its plans have changed since the measurement.
std::optional<Verdict> measured(const Table& table, const Problem& p, const Device& device, const TunedChoice& tuned) {
  for (const Kernel& kernel : table) {
    if (tuned.kernel != kernel.name || unusable(kernel, p, device, kAuto)) continue;
    const std::vector<Plan> all = plans(kernel, p, device, kAuto);
    if (all.size() != tuned.plans || tuned.plan >= all.size()) continue;
    const Plan& plan = all[tuned.plan];
    return Verdict{&kernel, plan, seconds_with(kernel, p, device, plan), nullptr, true};
  }
  return std::nullopt;
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

// Text with the sizes that a row for small problems accepts.
std::string limit(const Kernel& kernel) {
  return kernel.max_size ? "; accepted: m, n and k up to " + std::to_string(kernel.max_size) : "";
}

// Returns the reasons why no row of a request can be taken, each reason once.
template <class Asked>
std::string reasons(const Table& table, const Problem& p, const Device& device, const std::string& request,
                    const Asked& asked) {
  std::string text;
  for (const Kernel& kernel : table) {
    const char* reason = asked(kernel) ? unusable(kernel, p, device, request) : nullptr;
    if (reason && text.find(reason) == std::string::npos) text += (text.empty() ? "" : "; ") + std::string(reason);
  }
  return text;
}

[[noreturn]] void fail(const Table& table, const Problem& p, const Device& device, const std::string& request) {
  for (const Kernel& kernel : table)
    if (const char* reason = is_named(kernel, request) ? unusable(kernel, p, device, request) : nullptr)
      throw std::invalid_argument("kernel \"" + request + "\" can't take this problem: " + reason + limit(kernel));
  if (request == kBatchInvariant)
    throw std::invalid_argument(
        "no batch-invariant row can take this problem: " +
        reasons(table, p, device, request, [](const Kernel& kernel) { return kernel.batch_invariant; }));
  std::vector<std::string> names = {kAuto, kBatchInvariant};
  for (const Kernel& kernel : table) {
    if (!is_aten(kernel) && request == kernel.family)
      throw std::invalid_argument(
          "no row of the family \"" + request + "\" can take this problem: " +
          reasons(table, p, device, request, [&](const Kernel& row) { return request == row.family; }));
    for (const char* name : {kernel.family, kernel.name})
      if (*name && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    for (int tile = 0; tile < kernel.tile_count; ++tile) names.push_back(tile_name(kernel, tile));
  }
  // A truncated name counts like a name with one wrong letter.
  const auto distance = [&request](const std::string& name) {
    return std::min(edit_distance(request, name), 1 + edit_distance(request, name.substr(0, request.size())));
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& x, const std::string& y) { return distance(x) < distance(y); });
  throw std::invalid_argument(
      "kernel \"" + request + "\" is unknown; the nearest names are \"" + names[0] + "\", \"" + names[1] + "\", \"" +
      names[2] + "\"; accepted: \"auto\", \"batch_invariant\", a family, or a name of torch_sgemm.kernels()");
}

}  // namespace

bool is_aten(const Kernel& kernel) { return *kernel.family == '\0'; }

bool is_named(const Kernel& kernel, const std::string& request) {
  return request == kernel.name || named_tile(kernel, request) >= 0;
}

std::string tile_name(const Kernel& kernel, int tile) {
  if (kernel.tile_count == 0) return kernel.name;
  const TileSize& size = kernel.tiles[tile];
  return std::string(kernel.name) + ":" + std::to_string(size.bm) + "x" + std::to_string(size.bn);
}

bool runs_on(const Kernel& kernel, const Device& device) { return !cannot_run(kernel, device); }

Verdict judge(const Kernel& kernel, const Problem& p, const Device& device, const std::string& request) {
  const Packing copies = packing(kernel, p);
  Plan plan = planned(kernel, planned_problem(kernel, p, copies), model_of(device), request);
  plan.packing = copies;
  return {&kernel, plan, seconds_with(kernel, p, device, plan), unusable(kernel, p, device, request)};
}

std::vector<Verdict> candidates(const Table& table, const Problem& p, const Device& device) {
  std::vector<Verdict> all;
  for (const Kernel& kernel : table)
    if (!unusable(kernel, p, device, kAuto))
      for (const Plan& plan : plans(kernel, p, device, kAuto))
        all.push_back({&kernel, plan, seconds_with(kernel, p, device, plan), nullptr});
  return all;
}

Verdict choose(const Table& table, const Problem& p, const Device& device, const std::string& request) {
  if (request == kAuto)
    if (const auto tuned = tuned_choice(device, choice_key(p)))
      if (const auto verdict = measured(table, p, device, *tuned)) return *verdict;
  Verdict best = {};
  for (const Kernel& kernel : table) {
    if (unusable(kernel, p, device, request)) continue;
    const Verdict verdict = judge(kernel, p, device, request);
    if (!best.kernel || request == kBatchInvariant || verdict.seconds < best.seconds) best = verdict;
  }
  if (!best.kernel) fail(table, p, device, request);
  return best;
}

std::vector<Plan> plans(const Kernel& kernel, const Problem& asked, const Device& device, const std::string& request) {
  const Device& model = model_of(device);
  const Packing copies = packing(kernel, asked);
  const Problem p = planned_problem(kernel, asked, copies);
  std::vector<Plan> all;
  if (kernel.each_plan)
    visit_plans(kernel, p, model, named_tile(kernel, request), [&](const Plan& plan) { all.push_back(plan); });
  else
    all.push_back(planned(kernel, p, model, request));
  for (Plan& plan : all) plan.packing = copies;
  return all;
}

Problem simplified(Problem p) {
  if (p.k == 0 || p.alpha == 0) {
    p.k = p.a.cols = p.b.rows = 0;
    p.alpha = 0;
    p.b_planes = nullptr;
  }
  return p;
}

}  // namespace sgemm
