// Predicted time of PyTorch's own kernel. Pure host code.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

double aten_seconds(const Problem& p, const Device& device);

// Factor by which a choice multiplies the prediction.
double aten_caution(const Problem& p);

}  // namespace sgemm
