// The GPU that this build predicts for: kFitted and kRungs. On others, predictions are scaled by SMs, clock and
// bandwidth.
#pragma once
#include <string_view>

#include "h200.h"

namespace sgemm {

constexpr double kUnknownRung = 0.01;

constexpr double rung_share(std::string_view row) {
  for (const RungShare& rung : kRungs)
    if (row == rung.row) return rung.share;
  return kUnknownRung;
}

}  // namespace sgemm
