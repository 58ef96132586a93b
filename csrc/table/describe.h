// JSON of the table and of a choice, which Python reads.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "tuned.h"

namespace sgemm {

// [{"name": ..., "family": ..., ..., "devices": ["cpu", "cuda"]}, ...]
std::string describe_table(const Table& cpu, const Table& cuda);

// {name: units, ...} for the rows with an error bound for products of depth k
std::string describe_bounds(const Table& table, int64_t k);

// {"chosen": name or "", "error": text or "", "measured": true if the choice comes from tuned.h, "verdicts": [{"name":
// ..., "tile": [bm, bn] or null, "cut": the plan as text, "seconds": ..., "reason": ..., "error_bound": units or null},
// ...]}
std::string describe_choice(const Table& table, const Problem& problem, const Device& device,
                            const std::string& request);

// [{"kernel": name, "plan": index among the row's plans, "plans": their number, "seconds": predicted}, ...]
std::string describe_candidates(const Table& table, const Problem& problem, const Device& device);

// [{"name": the GPU's, "arch": ..., "sms": ..., "problem": [numbers of the key]}, ...]
std::string describe_noted(const std::vector<std::pair<Gpu, ChoiceKey>>& noted);

}  // namespace sgemm
