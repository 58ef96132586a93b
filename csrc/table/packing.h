// Copies of the operands that a row can't read directly. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

// Returns the copies that a row needs. They depend on what a ChoiceKey holds, so that a plan keeps them.
Packing packing(const Kernel& kernel, const Problem& problem);

// Returns an operand in the orientation of its copy.
ConstMatrix turned(const ConstMatrix& operand, bool turn);

// Returns the problem as a row reads it, with copies from `memory` on.
Problem with_copies(const Kernel& kernel, const Problem& problem, const Packing& copies, float* memory);

// Returns the problem for which a row is planned. Most rows read 16-bit operands as float32 copies. The copies' address
// is a placeholder that is never read.
Problem planned_problem(const Kernel& kernel, const Problem& problem, const Packing& copies);

}  // namespace sgemm
