// The table and a choice as JSON, for the Python side.
#pragma once
#include <string>

#include "dispatch.h"

namespace sgemm {

// [{"name": ..., "family": ..., ..., "devices": ["cpu", "cuda"]}, ...]
std::string describe_table(const Table& cpu, const Table& cuda);

// {"chosen": name or "", "error": text or "", "verdicts": [{"name": ..., "seconds": ..., "reason": ...}, ...]}
std::string describe_choice(const Table& table, const Problem& problem, const Device& device,
                            const std::string& request);

}  // namespace sgemm
