#include "aten.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/views.h"

namespace sgemm {
namespace {

// cuBLAS computes a product in tiles of some size, and may share a tile's k among several blocks, whose parts a second
// kernel adds up. It picks the size and the number of parts by rules of its own. What the fastest pick takes is a lower
// bound of what it does take, and mostly near: `python -m benchmarks choice` tells how near.

// Measured on an H200, over 30,000 products: nanoseconds at its clock.
struct Tile {
  int rows, cols;      // or the other way round
  double step, issue;  // for each of k: of a tile that is alone on its SM, and of each of many
  double begin_and_end;
};
constexpr Tile kTiles[] = {{32, 32, 18.6, 13.0, 50},   {32, 64, 29.9, 19.7, 215}, {64, 64, 47.3, 23.4, 730},
                           {128, 32, 53.4, 29.1, 660}, {64, 128, 60, 40.5, 1660}, {128, 128, 102, 71.1, 3520},
                           {256, 128, 160, 164, 7600}};
// Steps take longer and parts are added up more slowly, by whether a and b lie along k.
constexpr double kStepFactor[2][2] = {{1, 1.09}, {1.13, 1.18}};
constexpr double kSumSeconds[2][2] = {{1.9e-6, 2.6e-6}, {2.6e-6, 3.4e-6}}, kSumPartSeconds = 62e-9;  // each part more
constexpr int kParts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192};
constexpr int64_t kShortestPart = 16;                               // of k
constexpr double kLaunchSeconds = 2.6e-6, kBlockSeconds = 0.11e-6;  // of an SM
constexpr double kBandwidth = 0.55, kPartsBandwidth = 0.95;         // of a copy's

// Few rows of a matrix that lies along k: the other matrix is streamed once, at a speed that falls with the rows, and
// by blocks of some columns that each go through all of k. By whether the other one lies along k as well.
constexpr int64_t kMostRows = 16, kFewestColumns = 32;
constexpr double kStreamSeconds = 2.6e-6, kStreamRowSeconds = 113e-9, kStreamRows = 5.4;
constexpr double kStreamStepSeconds[2] = {21e-9, 7.8e-9}, kStreamBandwidth[2] = {0.67, 0.47};
constexpr double kStreamColumnSeconds = 170e-12;  // however short k is
// Matrix times vector, by whether the matrix lies along k; however short its rows are then. The shortest vary little,
// and take what is left of this by the caution below. A long k is shared.
constexpr double kVectorSeconds[2] = {1.85e-6, 2.25e-6}, kVectorBandwidth = 0.84, kVectorRowSeconds = 30e-12;
constexpr double kVectorSumSeconds = 1.5e-6;
constexpr int64_t kVectorLong = 8192;
// Across k, so many columns of not too large a matrix don't share k, however long it is.
constexpr int64_t kUnsharedColumns = 845, kUnsharedElements = 1 << 21;
constexpr double kUnsharedSeconds = 1.7e-6, kUnsharedStepSeconds = 9.5e-9;
// Vector times vector, up to some length: a few blocks go through k, part by part. A vector times a number (k = 1) is a
// product like any other.
constexpr double kDotSeconds = 3.1e-6, kDotStepSeconds = 16e-9;
constexpr int64_t kDotSteps = 450, kDotLongest = 65536;

// No other kernel shall be preferred on a guess: both predictions are some 10 % off.
constexpr double kCaution = 0.82;

double tiled_seconds(const Problem& p, const Device& device) {
  const double clock = kH200.clock_ghz / device.clock_ghz * 1e-9;
  const double bandwidth = device.bandwidth_gbs * 1e9, memory = bytes(p) / (kBandwidth * bandwidth);
  const double part = 4.0 * p.m * p.n / (kPartsBandwidth * bandwidth);
  const bool a_along_k = p.a.col == 1, b_along_k = p.b.row == 1;
  const double sum = kSumSeconds[a_along_k][b_along_k], slow = kStepFactor[a_along_k][b_along_k];
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles)
    for (const bool turned : {false, true}) {
      if (turned && tile.rows == tile.cols) continue;
      const int rows = turned ? tile.cols : tile.rows, cols = turned ? tile.rows : tile.cols;
      const double tiles = static_cast<double>(ceil_div(p.m, rows)) * ceil_div(p.n, cols) * p.batch;
      for (const int parts : kParts) {
        const int64_t k = ceil_div(p.k, parts);
        if (parts > 1 && (p.batch > 1 || k < kShortestPart)) break;
        const double mean = tiles * parts / device.sms, busiest = std::ceil(mean);
        const double step = std::max(tile.step, tile.issue * busiest) * slow;
        const double compute = (step * k + tile.begin_and_end * busiest) * clock;
        const double adding =
            parts > 1 ? sum + kSumPartSeconds * parts + part * (2 * parts + 1) : 0;  // each part is written and read
        best = std::min(best, kLaunchSeconds + kBlockSeconds * mean + std::max(compute, memory) + adding);
      }
    }
  return best;
}

double vector_seconds(const Problem& p, double bandwidth) {
  const bool along_k = p.n == 1 ? p.a.col == 1 : p.b.row == 1;
  const int64_t size = std::max(p.m, p.n);
  const double rows = along_k ? static_cast<double>(size * p.batch) : 0;
  const double read = std::max(bytes(p) / (kVectorBandwidth * bandwidth), rows * kVectorRowSeconds);
  const double shared = kVectorSeconds[along_k] + read + (p.k < kVectorLong ? 0 : kVectorSumSeconds);
  if (along_k || p.batch > 1 || size < kUnsharedColumns || size * p.k >= kUnsharedElements) return shared;
  return std::max(shared, kUnsharedSeconds + kUnsharedStepSeconds * static_cast<double>(p.k));
}

}  // namespace

double aten_seconds(const Problem& p, const Device& device) {
  if (p.m == 1 && p.n == 1 && p.batch == 1 && p.k <= kDotLongest)
    return kCaution * (kDotSeconds + kDotStepSeconds * static_cast<double>(std::min(p.k, kDotSteps)));
  const double bandwidth = device.bandwidth_gbs * 1e9;
  double seconds = tiled_seconds(p, device);
  if (std::min(p.m, p.n) == 1 && (p.k > 1 || p.batch > 1)) seconds = std::min(seconds, vector_seconds(p, bandwidth));
  if (p.m <= kMostRows && p.a.col == 1) {
    const bool along_k = p.b.row == 1;
    const double columns = static_cast<double>(std::max(p.n, kFewestColumns));
    const double streamed = 4 * p.batch * columns * p.k * std::max(1.0, p.m / kStreamRows);
    const double read = std::max(std::max(streamed, bytes(p)) / (kStreamBandwidth[along_k] * bandwidth),
                                 columns * p.batch * kStreamColumnSeconds);
    seconds =
        std::min(seconds, kStreamSeconds + kStreamRowSeconds * p.m + std::max(kStreamStepSeconds[along_k] * p.k, read));
  }
  return kCaution * seconds;
}

}  // namespace sgemm
