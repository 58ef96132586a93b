// The latest choices of a thread: a program asks for the same few products again and again.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "../problem/buffers.h"
#include "../problem/pieces.h"
#include "dispatch.h"
#include "namespace.h"

namespace sgemm {

struct Choice {
  const Kernel* kernel = nullptr;
  Plan plan;
  std::string label;  // for a profiler: "sgemm::mm[naive_32 3x5x4]", the batch first if there is one
};

class ChoiceCache {
 public:
  // As choose(), for a table, a device and a name of an operator that outlive the cache.
  const Choice& choose(const char* op, const Table& table, const Problem& p, const Device& device,
                       const std::string& request) {
    const Key key = key_of(op, table, p, device);
    size_t hash = std::hash<std::string>()(request);
    for (size_t i = 0; i < key.size(); i += 2) {  // two at a time: each multiplication waits for the one before
      const auto first = static_cast<size_t>(key[i]), second = static_cast<size_t>(key[i + 1]);
      hash = (hash ^ first ^ (second << 32 | second >> 32)) * 0x9E3779B97F4A7C15u;
    }
    Entry& entry = entries_[hash >> (64 - kBits)];
    if (!entry.choice.kernel || entry.key != key || entry.request != request) {
      const Verdict verdict = sgemm::choose(table, p, device, request);
      entry = {key, request, {verdict.kernel, verdict.plan, label(op, verdict, p)}};
    }
    return entry.choice;
  }

 private:
  static constexpr int kBits = 8;
  // The operator, and all that a choice and its plan depend on: sizes, strides, alignment, how C is read, whether f is
  // computed, whether D may add up pieces of k, whether B's planes are there, and the workspace that may be used.
  using Key = std::array<int64_t, 26>;  // an even number
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

  static Key key_of(const char* op, const Table& table, const Problem& p, const Device& device) {
    const auto offset = [](const float* data) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % 16); };
    const int64_t alignment = offset(p.a.data) * 256 + offset(p.b.data) * 16 + offset(p.d.data);
    return {p.m,
            p.n,
            p.k,
            p.batch,
            p.a.row,
            p.a.col,
            p.a.batch.stride,
            p.a.batch.group,
            p.a.batch.group_stride,
            p.b.row,
            p.b.col,
            p.b.batch.stride,
            p.b.batch.group,
            p.b.batch.group_stride,
            p.d.row,
            p.d.col,
            p.d.batch.stride,
            p.d.batch.group,
            p.d.batch.group_stride,
            alignment,
            static_cast<int64_t>(workspace_limit()),
            (p.beta != 0) + 2 * (p.activation != Activation::kNone) + 4 * (p.beta != 0 && p.c.row != 0) +
                8 * adds_up_in_d(p) + 16 * (p.b_planes != nullptr),
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(op)),
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(table.rows)),
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(&device))};
  }

  std::array<Entry, 1 << kBits> entries_;
};

}  // namespace sgemm
