// Chooses a row of THE TABLE for a problem. Pure host code: the choice needs no GPU.
#pragma once
#include <string>
#include <vector>

#include "../problem/problem.h"

namespace sgemm {

inline constexpr const char* kAuto = "auto";
// The batch-invariant row: an element's bits depend only on its row of A, on B and on k. For every problem, this is the
// last such row of the table that the device runs.
inline constexpr const char* kBatchInvariant = "batch_invariant";

// The decision about one row. `reason` says why the row can't be taken; null if it can.
struct Verdict {
  const Kernel* kernel;
  Plan plan;
  double seconds;  // predicted time, packing included
  const char* reason;
  bool measured = false;  // the plan comes from tuned.h
};

// Judges a row for a request. `request` is "auto", "batch_invariant", a family, or a row's name, optionally with one of
// its tiles: "split_fp16x3:128x64".
Verdict judge(const Kernel& kernel, const Problem& problem, const Device& device, const std::string& request);

// Returns the row with the shortest predicted time among those that `request` allows, the earlier row on a tie. "auto"
// returns the measured row if the problem was measured. "batch_invariant" returns the device's row. Throws
// std::invalid_argument for a name that the table lacks, and for a row or family that can't take the problem.
Verdict choose(const Table& table, const Problem& problem, const Device& device, const std::string& request);

// Returns all plans of all rows that "auto" may take, row by row.
std::vector<Verdict> candidates(const Table& table, const Problem& problem, const Device& device);

// Returns true if a request names this row.
bool is_named(const Kernel& kernel, const std::string& request);

// Returns the request for a row with one of its tiles: "row:128x64", or the row's name if the row has a single tile.
std::string tile_name(const Kernel& kernel, int tile);

bool is_aten(const Kernel& kernel);
bool runs_on(const Kernel& kernel, const Device& device);

// Returns the problem without operands that have no effect. With alpha = 0 or k = 0 nothing is added up: A and B are
// not read, and their Inf or NaN does not reach D.
Problem simplified(Problem problem);

// Returns all plans of a row, or those with the tile that the request names; the plan of judge() is one of them.
std::vector<Plan> plans(const Kernel& kernel, const Problem& problem, const Device& device, const std::string& request);

}  // namespace sgemm
