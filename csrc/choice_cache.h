// The latest choices of a thread: a program asks for the same few products again and again.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "dispatch.h"

namespace sgemm {

class ChoiceCache {
 public:
  // As choose(), for a table and a device that outlive the cache.
  const Kernel& choose(const Table& table, const Problem& p, const Device& device, const std::string& request) {
    const Key key = key_of(table, p, device);
    size_t hash = std::hash<std::string>()(request);
    for (int64_t word : key) hash = (hash ^ static_cast<size_t>(word)) * 0x9E3779B97F4A7C15u;
    Entry& entry = entries_[hash >> (64 - kBits)];
    if (!entry.kernel || entry.key != key || entry.request != request)
      entry = {key, request, &sgemm::choose(table, p, device, request)};
    return *entry.kernel;
  }

 private:
  static constexpr int kBits = 8;
  // All that a choice depends on: sizes, strides, alignment, whether C is read and f computed.
  using Key = std::array<int64_t, 14>;
  struct Entry {
    Key key;
    std::string request;
    const Kernel* kernel = nullptr;
  };

  static Key key_of(const Table& table, const Problem& p, const Device& device) {
    const int64_t alignment =
        reinterpret_cast<uintptr_t>(p.a.data) % 16 * 16 + reinterpret_cast<uintptr_t>(p.b.data) % 16;
    return {p.m,
            p.n,
            p.k,
            p.batch,
            p.a.row,
            p.a.col,
            p.a.batch,
            p.b.row,
            p.b.col,
            p.b.batch,
            alignment,
            (p.beta != 0) + 2 * (p.activation != Activation::kNone),
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(table.rows)),
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(&device))};
  }

  std::array<Entry, 1 << kBits> entries_;
};

}  // namespace sgemm
