// The tensor cores of torch_sgemm/measure/tensor_cores.py for float16 operands, for models with many products.
// support/tensor_core.py builds this file and calls it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kStep = 16;  // of k
constexpr int kNone = -100000, kLeast = -14, kLeastAlignment = -133, kCut = 25;

int64_t bits_of(double x) {
  int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

double from_bits(int64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Returns floor(log2 |x|), at least `least`, and kNone for zero. Precondition: x is finite and no subnormal float64.
int exponent(double x, int least) {
  return x == 0 ? kNone : std::max(least, static_cast<int>(bits_of(x) >> 52 & 0x7ff) - 1023);
}

double power(int exponent) { return from_bits(int64_t{exponent + 1023} << 52); }

// A step's 16 columns of an operand [rows][k], transposed, and their exponents.
struct Columns {
  std::vector<double> values;
  std::vector<int> exponents;
  bool zero = true;

  Columns(const double* x, int64_t rows, int64_t k, int64_t first, int64_t width)
      : values(width * rows), exponents(width * rows) {
    for (int64_t q = 0; q < width; ++q)
      for (int64_t i = 0; i < rows; ++i) {
        const double value = x[i * k + first + q];
        values[q * rows + i] = value;
        exponents[q * rows + i] = exponent(value, kLeast);
        zero &= value == 0;
      }
  }
};

}  // namespace

// Adds x yᵀ to total [m][n], for x [m][k] and y [n][k], in the given steps of 16 of k.
extern "C" void multiply(double* total, const double* x, const double* y, int64_t m, int64_t n, int64_t k,
                         const int64_t* steps, int64_t step_count) {
  std::vector<int> top(n);
  std::vector<double> inverse(n), kept(n);
  for (const int64_t* step = steps; step < steps + step_count; ++step) {
    const int64_t first = *step * kStep, width = std::min(kStep, k - first);
    const Columns a(x, m, k, first, width), b(y, n, k, first, width);
    if (a.zero || b.zero) continue;  // nothing is added, and nothing cut off
    for (int64_t i = 0; i < m; ++i) {
      double* const sums = total + i * n;
      for (int64_t j = 0; j < n; ++j) top[j] = exponent(sums[j], kNone);
      for (int64_t q = 0; q < width; ++q)
        for (int64_t j = 0; j < n; ++j) top[j] = std::max(top[j], a.exponents[q * m + i] + b.exponents[q * n + j]);
      for (int64_t j = 0; j < n; ++j) {
        inverse[j] = power(kCut - std::max(top[j], kLeastAlignment));
        kept[j] = std::trunc(sums[j] * inverse[j]);
      }
      for (int64_t q = 0; q < width; ++q) {
        const double factor = a.values[q * m + i];
        for (int64_t j = 0; j < n; ++j) kept[j] += std::trunc(factor * b.values[q * n + j] * inverse[j]);
      }
      for (int64_t j = 0; j < n; ++j)  // 24 bits stay
        sums[j] = from_bits(bits_of(kept[j] / inverse[j]) & ~((int64_t{1} << 29) - 1));
    }
  }
}
