// The time that PyTorch's own kernel is predicted to take. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

double aten_seconds(const Problem& p, const Device& device);

// How much of it counts in a choice.
double aten_caution(const Problem& p);

}  // namespace sgemm
