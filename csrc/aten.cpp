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

// Measured on an H200: nanoseconds at its clock.
struct Tile {
  int rows, cols;      // or the other way round
  double step, issue;  // for each of k: of a tile that is alone on its multiprocessor, and of each of many
  double begin_and_end;
};
constexpr Tile kTiles[] = {{32, 32, 19.3, 13.7, 150},  {32, 64, 29, 22.1, 320},   {64, 64, 51.6, 25.1, 770},
                           {128, 32, 53.4, 31.7, 820}, {64, 128, 60, 45.8, 1660}, {128, 128, 102, 79.5, 3450},
                           {256, 128, 160, 164, 7600}};
constexpr int kParts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192};
constexpr int64_t kShortestPart = 16;  // of k
constexpr double kLaunchSeconds = 2.2e-6;
constexpr double kBandwidth = 0.6, kPartsBandwidth = 5;  // of a copy's; parts stay in the caches
// To add up parts, by whether a and b lie along k, and more for each part.
constexpr double kSumSeconds[2][2] = {{3.2e-6, 4.4e-6}, {4.4e-6, 5.3e-6}}, kSumPartSeconds = 20e-9;

// Few rows of a matrix that lies along k: the other matrix is streamed once, at a speed that falls with the rows, and
// by blocks of some columns that each go through all of k. By whether the other one lies along k as well.
constexpr int64_t kMostRows = 16, kFewestColumns = 32;
constexpr double kStreamSeconds = 1.85e-6, kStreamRowSeconds = 25e-9, kStreamRows = 6;
constexpr double kStreamStepSeconds[2] = {15e-9, 4.5e-9}, kStreamBandwidth[2] = {0.75, 0.66};
constexpr double kStreamColumnSeconds = 45e-12;  // however short k is
// Matrix times vector; however short the matrix's rows are that lie along k.
constexpr double kVectorSeconds = 1.8e-6, kVectorBandwidth = 0.84, kVectorRowSeconds = 30e-12;

// Of what comes on top of a launch: no other kernel shall be preferred on a guess.
constexpr double kCaution = 0.94;

double tiled_seconds(const Problem& p, const Device& device) {
  const double clock = kH200.clock_ghz / device.clock_ghz * 1e-9;
  const double bandwidth = device.bandwidth_gbs * 1e9, memory = bytes(p) / (kBandwidth * bandwidth);
  const double part = 4.0 * p.m * p.n / (kPartsBandwidth * bandwidth);
  const double sum = kSumSeconds[p.a.col == 1][p.b.row == 1];
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles)
    for (const bool turned : {false, true}) {
      if (turned && tile.rows == tile.cols) continue;
      const int rows = turned ? tile.cols : tile.rows, cols = turned ? tile.rows : tile.cols;
      const double tiles = static_cast<double>(ceil_div(p.m, rows)) * ceil_div(p.n, cols) * p.batch;
      for (const int parts : kParts) {
        const int64_t k = ceil_div(p.k, parts);
        if (parts > 1 && (p.batch > 1 || k < kShortestPart)) break;
        const double busiest = std::ceil(tiles * parts / device.sms);
        const double compute = (std::max(tile.step, tile.issue * busiest) * k + tile.begin_and_end * busiest) * clock;
        const double adding =
            parts > 1 ? sum + kSumPartSeconds * parts + part * (2 * parts + 1) : 0;  // each part is written and read
        best = std::min(best, kLaunchSeconds + std::max(compute, memory) + adding);
      }
    }
  return best;
}

}  // namespace

double aten_seconds(const Problem& p, const Device& device) {
  const double bandwidth = device.bandwidth_gbs * 1e9;
  double seconds = tiled_seconds(p, device);
  if (std::min(p.m, p.n) == 1) {
    const bool along_k = p.n == 1 ? p.a.col == 1 : p.b.row == 1;
    const double rows = along_k ? static_cast<double>(std::max(p.m, p.n) * p.batch) : 0;
    const double read = std::max(bytes(p) / (kVectorBandwidth * bandwidth), rows * kVectorRowSeconds);
    seconds = std::min(seconds, kVectorSeconds + read);
  }
  if (p.m <= kMostRows && p.a.col == 1) {
    const bool along_k = p.b.row == 1;
    const double columns = static_cast<double>(std::max(p.n, kFewestColumns));
    const double streamed = 4 * p.batch * columns * p.k * std::max(1.0, p.m / kStreamRows);
    const double read = std::max(std::max(streamed, bytes(p)) / (kStreamBandwidth[along_k] * bandwidth),
                                 columns * p.batch * kStreamColumnSeconds);
    seconds =
        std::min(seconds, kStreamSeconds + kStreamRowSeconds * p.m + std::max(kStreamStepSeconds[along_k] * p.k, read));
  }
  return seconds - (1 - kCaution) * std::max(0.0, seconds - kLaunchSeconds);
}

}  // namespace sgemm
