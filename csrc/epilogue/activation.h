// The function that a product may end with, as torch.nn.functional computes it: the same for NaN, infinities and what
// is too large to square.
#pragma once
#include <cmath>

#include "../problem/problem.h"

namespace sgemm {

SGEMM_HOST_DEVICE inline float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0.0f : x;  // NaN stays
    case Activation::kGelu:
      return 0.5f * x * (1 + erff(x * 0.70710678f));  // sqrt(1/2)
    case Activation::kGeluTanh:
      return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));  // sqrt(2/pi)
    case Activation::kSilu:
      return x / (1 + expf(-x));
    default:
      return x;
  }
}

// The same for several elements.
template <int N>
SGEMM_HOST_DEVICE inline void activate(Activation activation, float (&x)[N]) {
  const auto each = [&](auto constant) {
    for (float& value : x) value = activated(constant(), value);
  };
  switch (activation) {
    case Activation::kRelu:
      return each([] { return Activation::kRelu; });
    case Activation::kGelu:
      return each([] { return Activation::kGelu; });
    case Activation::kGeluTanh:
      return each([] { return Activation::kGeluTanh; });
    case Activation::kSilu:
      return each([] { return Activation::kSilu; });
    default:
      return;
  }
}

}  // namespace sgemm
