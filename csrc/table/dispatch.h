// Chooses a row of THE TABLE for a problem and runs it. Pure host code: the choice needs no GPU.
#pragma once
#include <string>
#include <vector>

#include "backend.h"

namespace sgemm {

inline constexpr const char* kAuto = "auto";
// The kernel of which an element's bits depend on nothing but its own row of A, on B and on k: the table's last such
// one that the device runs, whatever the problem.
inline constexpr const char* kBatchInvariant = "batch_invariant";

// The decision about one row. `reason` says why it can't be taken; null if it can.
struct Verdict {
  const Kernel* kernel;
  Plan plan;
  double seconds;  // predicted, packing included
  const char* reason;
  bool measured = false;  // the plan is one of tuned.h
};

// `request` is "auto", "batch_invariant", a family, or a row's name, which may name one of its tiles as well:
// "split_fp16x3:128x64".
Verdict judge(const Kernel& kernel, const Problem& problem, const Device& device, const std::string& request);

// The row that is predicted to be fastest among those that `request` allows, the earlier row on a tie; of "auto" the
// one that was measured, if the problem was; of "batch_invariant" the device's. Throws std::invalid_argument for a name
// that the table lacks, and for a row or family that can't take the problem.
Verdict choose(const Table& table, const Problem& problem, const Device& device, const std::string& request);

// All plans of all rows that "auto" may take, row by row.
std::vector<Verdict> candidates(const Table& table, const Problem& problem, const Device& device);

// Whether a request is for this row alone.
bool is_named(const Kernel& kernel, const std::string& request);

// What asks for a row in one of its tiles: "row:128x64", or the row's name where it has only one.
std::string tile_name(const Kernel& kernel, int tile);

bool is_aten(const Kernel& kernel);
bool runs_on(const Kernel& kernel, const Device& device);

// The problem without what doesn't count: with alpha = 0 or k = 0 nothing is added up, so A and B are not read, and no
// Inf or NaN of theirs reaches D.
Problem simplified(Problem problem);

// All plans of a row, or those with the tile that the request names; that of judge() is one of them.
std::vector<Plan> plans(const Kernel& kernel, const Problem& problem, const Device& device, const std::string& request);

// Which operands a row can't read directly, whether they are copied transposed, and the size of their copies: none of
// a B that is A transposed and whose copy A's is.
struct Packing {
  bool a, b;
  bool turn_a, turn_b;
  bool shared;
  int64_t floats_a, floats_b;
};
Packing packing(const Kernel& kernel, const Problem& problem);

// The workspace that run() needs, in bytes.
size_t workspace_bytes(const Kernel& kernel, const Problem& problem, const Plan& plan);

// Launches a row, with the packing before it. With `activated`, D is what goes into f, with the same bits as within the
// kernel, and f of it goes there.
void run(const Backend& backend, const Kernel& kernel, Problem problem, const Plan& plan, Context context,
         const Matrix* activated = nullptr);

}  // namespace sgemm
