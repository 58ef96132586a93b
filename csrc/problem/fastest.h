// Chooses among the plans of a row.
#pragma once
#include <limits>

namespace sgemm {

// Calls `each` with a visitor and returns the visited plan with the shortest predicted time; the first one on a tie.
template <class P, class Each>
P fastest(const Each& each) {
  P best = {};
  best.seconds = std::numeric_limits<double>::infinity();
  each([&best](const P& plan) {
    if (plan.seconds < best.seconds) best = plan;
  });
  return best;
}

}  // namespace sgemm
