// Activations of a product's epilogue, as torch.nn.functional computes them: they agree for NaN, infinities and numbers
// whose square overflows. A fused activation and a separate one give the same bits, because every product here is
// rounded explicitly. The compiler could otherwise contract a product with a sum in one place and not in the other.
#pragma once
#include <cmath>

#include "../problem/problem.h"

namespace sgemm {

// Rounded multiplication. On the host, erff(), tanhf() and expf() are calls, so that the compiler can't contract them.
SGEMM_HOST_DEVICE inline float times(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}
SGEMM_HOST_DEVICE inline float one_plus(float x) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(1.0f, x);
#else
  return 1.0f + x;
#endif
}

SGEMM_HOST_DEVICE inline float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0.0f : x;  // NaN remains NaN
    case Activation::kGelu:
      return times(times(0.5f, x), one_plus(erff(times(x, 0.70710678f))));  // sqrt(1/2)
    case Activation::kGeluTanh: {
      const float cubic = fmaf(times(times(0.044715f, x), x), x, x);
      return times(times(0.5f, x), one_plus(tanhf(times(0.79788456f, cubic))));  // sqrt(2/pi)
    }
    case Activation::kSilu:
      return x / one_plus(expf(-x));
    default:
      return x;
  }
}

// The same for N elements.
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
