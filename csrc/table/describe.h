// The table and a choice as JSON, for the Python side.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "tuned.h"

namespace sgemm {

// [{"name": ..., "family": ..., ..., "devices": ["cpu", "cuda"]}, ...]
std::string describe_table(const Table& cpu, const Table& cuda);

// {name: units, ...} of the rows that promise a bound for products of depth k
std::string describe_bounds(const Table& table, int64_t k);

// {"chosen": name or "", "error": text or "", "measured": whether the choice is one of tuned.h, "verdicts": [{"name":
// ..., "tile": [bm, bn] or null, "seconds": ..., "reason": ..., "error_bound": units or null}, ...]}
std::string describe_choice(const Table& table, const Problem& problem, const Device& device,
                            const std::string& request);

// [{"kernel": name, "plan": which of the row's, "plans": how many it has, "seconds": predicted}, ...]
std::string describe_candidates(const Table& table, const Problem& problem, const Device& device);

// [{"name": of the GPU, "arch": ..., "sms": ..., "problem": [numbers of the key]}, ...]
std::string describe_noted(const std::vector<std::pair<Gpu, ChoiceKey>>& noted);

}  // namespace sgemm
