// Which of a row's plans it takes.
#pragma once
#include <limits>

namespace sgemm {

// The one that is predicted to be fastest of those that `each` calls its argument with; the first on a tie.
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
