#include "describe.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace sgemm {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    }
  }
  return out + "\"";
}

std::string number(double value, int digits = 6) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

// Formats all 17 digits: a rounded value might be below the bound.
std::string bound(const Kernel& kernel, int64_t k) {
  if (!kernel.error_bound) return "null";
  return number(k == 0 ? 0 : kernel.error_bound(k), 17);
}

// "key": value, ...
class Object {
 public:
  Object& text(const char* key, const std::string& value) { return raw(key, quoted(value)); }
  Object& raw(const char* key, const std::string& value) {
    body_ += (body_.empty() ? "" : ", ") + quoted(key) + ": " + value;
    return *this;
  }
  std::string str() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

constexpr const char* kReads[] = {"any", "rows16", "maps", "maps_along_k", "bfloat16"};  // Reads

std::string tile(const TileSize& x) { return "[" + std::to_string(x.bm) + ", " + std::to_string(x.bn) + "]"; }

// Returns a plan as text; empty for a row with a single kernel.
std::string cut(const Kernel& kernel, const Plan& plan) { return kernel.cut ? kernel.cut(plan) : ""; }

// Returns true if the plan is in one of the row's tiles. A row may have a plan of another kernel, which has none.
bool is_in_tiles(const Kernel& kernel, const std::string& cut) {
  return kernel.tile_count && cut.rfind("tile=", 0) == 0;
}

void append(std::string& list, const std::string& item) { list += (list.empty() ? "" : ", ") + item; }

}  // namespace

std::string describe_table(const Table& cpu, const Table& cuda) {
  std::string rows;
  for (int i = 0; i < cpu.size; ++i) {
    const Kernel& k = cuda.rows[i];
    std::string devices;
    if (is_aten(k) || cpu.rows[i].launch) append(devices, "\"cpu\"");
    if (is_aten(k) || k.launch) append(devices, "\"cuda\"");
    Object row;
    row.text("name", k.name).text("family", k.family).text("idea", k.idea).text("source", k.source);
    row.raw("devices", "[" + devices + "]").raw("min_arch", std::to_string(k.min_arch));
    row.raw("max_arch", k.max_arch == kAnyArch ? "null" : std::to_string(k.max_arch));
    std::string tiles, tile_names;
    for (int t = 0; t < std::max(1, k.tile_count); ++t) {
      append(tiles, tile(k.tile_count ? k.tiles[t] : TileSize{k.bm, k.bn}));
      append(tile_names, quoted(tile_name(k, t)));
    }
    row.raw("tiles", "[" + tiles + "]").raw("tile_names", "[" + tile_names + "]");
    row.raw("bm", std::to_string(k.bm)).raw("bn", std::to_string(k.bn)).raw("bk", std::to_string(k.bk));
    row.raw("tm", std::to_string(k.tm)).raw("tn", std::to_string(k.tn)).raw("threads", std::to_string(k.threads));
    row.raw("max_size", k.max_size ? std::to_string(k.max_size) : "null");
    row.raw("most_rows", k.most_rows ? std::to_string(k.most_rows) : "null");
    row.raw("takes_planes", k.takes_planes ? "true" : "false");
    row.text("reads", kReads[static_cast<int>(k.reads)]);
    row.raw("reads_16_bits", k.reads_16_bits ? "true" : "false");
    row.raw("streams_16_bits", k.streams_16_bits ? "true" : "false").raw("bits", std::to_string(k.bits));
    row.raw("in_auto", is_aten(k) || k.in_auto ? "true" : "false").raw("auto_from", std::to_string(k.auto_from));
    row.raw("batch_invariant", k.batch_invariant ? "true" : "false");
    append(rows, row.str());
  }
  return "[" + rows + "]";
}

std::string describe_bounds(const Table& table, int64_t k) {
  Object bounds;
  for (const Kernel& kernel : table)
    if (kernel.error_bound) bounds.raw(kernel.name, bound(kernel, k));
  return bounds.str();
}

std::string describe_choice(const Table& table, const Problem& p, const Device& device, const std::string& request) {
  std::string error, verdicts;
  Verdict chosen = {};
  try {
    chosen = choose(table, p, device, request);
  } catch (const std::invalid_argument& e) {
    error = e.what();
  }
  for (const Kernel& kernel : table) {
    Verdict verdict = &kernel == chosen.kernel ? chosen : judge(kernel, p, device, request);
    if (request == kBatchInvariant && &kernel != chosen.kernel && !verdict.reason)
      verdict.reason = "for devices that don't run the chosen row";
    Object row;
    row.text("name", kernel.name).text("family", kernel.family);
    const std::string text = cut(kernel, verdict.plan);
    row.raw("tile", is_in_tiles(kernel, text) ? tile(kernel.tiles[verdict.plan.tile]) : "null");
    row.raw("seconds", number(verdict.seconds)).text("cut", text);
    row.text("reason", verdict.reason ? verdict.reason : "").raw("error_bound", bound(kernel, p.k));
    append(verdicts, row.str());
  }
  Object found;
  found.text("chosen", chosen.kernel ? chosen.kernel->name : "").text("error", error);
  return found.raw("measured", chosen.measured ? "true" : "false").raw("verdicts", "[" + verdicts + "]").str();
}

std::string describe_candidates(const Table& table, const Problem& p, const Device& device) {
  const std::vector<Verdict> all = candidates(table, p, device);
  std::string list;
  for (auto first = all.begin(); first != all.end();) {
    const auto last = std::find_if(first, all.end(), [&](const Verdict& x) { return x.kernel != first->kernel; });
    for (auto each = first; each != last; ++each) {
      Object candidate;
      candidate.text("kernel", each->kernel->name).raw("plan", std::to_string(each - first));
      candidate.raw("plans", std::to_string(last - first)).raw("seconds", number(each->seconds));
      append(list, candidate.str());
    }
    first = last;
  }
  return "[" + list + "]";
}

std::string describe_noted(const std::vector<std::pair<Gpu, ChoiceKey>>& noted) {
  std::string list;
  for (const auto& [gpu, key] : noted) {
    std::string numbers;
    for (const int64_t x : key) append(numbers, std::to_string(x));
    Object problem;
    problem.text("name", gpu.name).raw("arch", std::to_string(gpu.arch)).raw("sms", std::to_string(gpu.sms));
    append(list, problem.raw("problem", "[" + numbers + "]").str());
  }
  return "[" + list + "]";
}

}  // namespace sgemm
