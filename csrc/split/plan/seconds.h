// The predicted times of split products' plans. Pure host code.
#pragma once
#include "plan.h"

namespace sgemm::split {

// Returns a problem's number of tiles. `triangle`: tiles below the diagonal don't count.
int64_t tiles_of(const RowShape& shape, const Problem& p, bool triangle);

// Returns the seconds of a plan in one piece.
double predicted_seconds(const RowShape& shape, const Problem& p, const Device& device, const SplitPlan& plan);

}  // namespace sgemm::split
