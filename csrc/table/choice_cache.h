// Caches a thread's latest choices, because a program repeats the same few products.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include "choice_key.h"
#include "dispatch.h"
#include "namespace.h"
#include "tuned.h"

namespace sgemm {

struct Choice {
  const Kernel* kernel = nullptr;
  Plan plan;
  std::string label;  // for a profiler: "sgemm::mm[naive_32 3x5x4]", the batch first if there is one
};

class ChoiceCache {
 public:
  // Like choose(). Precondition: the table, the device and the operator's name outlive the cache.
  const Choice& choose(const char* op, const Table& table, const Problem& p, const Device& device,
                       const std::string& request) {
    const ChoiceKey problem = choice_key(p);
    const Key key = key_of(op, problem, table, device);
    size_t hash = std::hash<std::string>()(request);
    for (size_t i = 0; i < key.size(); i += 2) {  // two at a time: each multiplication waits for the last
      const auto first = static_cast<size_t>(key[i]), second = static_cast<size_t>(key[i + 1]);
      hash = (hash ^ first ^ (second << 32 | second >> 32)) * 0x9E3779B97F4A7C15u;
    }
    Entry& entry = entries_[hash >> (64 - kBits)];
    if (!entry.choice.kernel || entry.key != key || entry.request != request) {
      if (request == kAuto) note_problem(device, problem);
      const Verdict verdict = sgemm::choose(table, p, device, request);
      entry = {key, request, {verdict.kernel, verdict.plan, label(op, verdict, p)}};
    }
    return entry.choice;
  }

 private:
  static constexpr int kBits = 8;
  // The problem's numbers, the operator, the table, the device, and tuning_epoch().
  using Key = std::array<int64_t, std::tuple_size_v<ChoiceKey> + 4>;  // an even number
  struct Entry {
    Key key;
    std::string request;
    Choice choice;
  };

  static std::string label(const char* op, const Verdict& verdict, const Problem& p) {
    std::string text = std::string(kOperators) + op + "[" + tile_name(*verdict.kernel, verdict.plan.tile) + " ";
    if (p.batch != 1) text += std::to_string(p.batch) + "x";
    return text + std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k) + "]";
  }

  static Key key_of(const char* op, const ChoiceKey& problem, const Table& table, const Device& device) {
    const auto address = [](const void* x) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(x)); };
    Key key;
    std::copy(problem.begin(), problem.end(), key.begin());
    const std::array<int64_t, 4> others = {address(op), address(table.rows), address(&device), tuning_epoch()};
    std::copy(others.begin(), others.end(), key.begin() + problem.size());
    return key;
  }

  std::array<Entry, 1 << kBits> entries_;
};

}  // namespace sgemm
