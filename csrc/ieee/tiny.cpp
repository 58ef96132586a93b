#include "tiny.h"

#include <algorithm>
#include <cstdlib>

#include "../common/views.h"

namespace sgemm::ieee {
namespace {

// Measured on an H200.
constexpr double kLaunchSeconds = 1.3e-6;
constexpr double kBlockSeconds = 0.8e-6;  // to read, to add up and to store: each waits for the one before
constexpr double kBandwidth = 0.85;       // of a copy's
constexpr double kFfma = 0.3;             // of the peak
constexpr int kThreadsToFill = 128;       // that a multiprocessor needs for that share
constexpr double kElements = 1.5;         // neighbours that are not read 16 bytes at a time
constexpr double kScattered = 4;          // elements without neighbours
constexpr double kElementSeconds = 1e-6;  // to begin with elements instead of quads

// Of an operand or the result, in bytes that count as if they were read 16 at a time.
template <class T>
double traffic(const MatrixView<T>& x, int64_t batch, bool quads) {
  const double bytes = 4.0 * x.rows * x.cols * matrices(x, batch);
  return bytes * (quads ? 1 : x.row == 1 || x.col == 1 ? kElements : kScattered);
}

}  // namespace

int tiny_class(const Problem& p) {
  int index = 0;
  while (kTinyClasses[index].size < std::max(p.m, p.n)) ++index;
  return index;
}

TinyRead tiny_read(const ConstMatrix& x) {
  const bool by_cols = x.col != 1 && (x.row == 1 || std::abs(x.row) < std::abs(x.col));
  return {by_cols, has_quads(by_cols ? transposed(x) : x)};
}

double tiny_seconds(const Problem& p, const Device& device) {
  if (std::max({p.m, p.n, p.k}) > kLargestTiny) return 1;  // never taken
  const TinyClass& tile = kTinyClasses[tiny_class(p)];
  const double bandwidth = kBandwidth * device.bandwidth_gbs * 1e9;
  const double d = 4.0 * p.m * p.n * p.batch;
  const bool quads_a = tiny_read(p.a).quads, quads_b = tiny_read(p.b).quads;
  const double memory =
      (traffic(p.a, p.batch, quads_a) + traffic(p.b, p.batch, quads_b) + d * (p.beta != 0 ? 2 : 1)) / bandwidth;
  const double blocks = ceil_div(ceil_div(p.batch, tile.products), device.sms);  // of the busiest multiprocessor
  const double ffmas = blocks * tile.products * tile.size * tile.size * (ceil_div(p.k, 4) * 4);
  const double fill = std::min(1.0, blocks * tile.threads() / kThreadsToFill);
  const double compute = ffmas / (kFfma * fill * 128 * device.clock_ghz * 1e9);
  const double begin = quads_a && quads_b ? 0 : kElementSeconds;
  return kLaunchSeconds + kBlockSeconds + begin + std::max(memory, compute);
}

}  // namespace sgemm::ieee
