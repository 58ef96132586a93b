#include "aten.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../problem/views.h"
#include "models.h"

namespace sgemm {
namespace {

// cuBLAS computes a product in tiles of some size, and may split a tile's k over several blocks, whose parts a second
// kernel adds up. It picks the tile size and the number of parts by rules of its own. The time of the fastest pick is a
// lower bound of the actual time, and usually close: `python -m benchmarks choice` shows how close.

struct Tile {
  int rows, cols;  // or transposed
};
constexpr Tile kTiles[] = {{32, 32}, {32, 64}, {64, 64}, {128, 32}, {64, 128}, {128, 128}, {256, 128}};
constexpr int kParts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192};
constexpr int64_t kShortestPart = 16;  // minimum k per part
constexpr int64_t kLongK = 2000;

// Few rows of a matrix that lies along k: the other matrix is streamed once. The bandwidth falls with the number of
// rows. Each block has some columns and goes through all of k.
constexpr int64_t kMostRows = 16, kFewestColumns = 32;
// Matrix times vector: from k = kVectorLong on, blocks share k. Exception: across k, a matrix of at least
// kUnsharedColumns columns and fewer than kUnsharedElements elements is never shared, for any k.
constexpr int64_t kVectorLong = 8192, kUnsharedColumns = 845, kUnsharedElements = 1 << 21;
// Vector times vector, up to kDotLongest: a few blocks go through k, part by part. A vector times a number (k = 1) is
// predicted like any other product.
constexpr int64_t kDotSteps = 450, kDotLongest = 65536;

double tiled_seconds(const Problem& p, const Device& device) {
  const AtenModel& model = models().aten;
  const double bandwidth = device.bandwidth_gbs * 1e9, memory = bytes(p) / (model.bandwidth * bandwidth);
  const double part = 4.0 * p.m * p.n / bandwidth;
  const int along_k = (p.a.col == 1) + (p.b.row == 1);
  const double slow = std::pow(model.along_k, along_k), sum = model.sum + along_k * model.sum_along_k;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles)
    for (const bool turned : {false, true}) {
      if (turned && tile.rows == tile.cols) continue;
      const int rows = turned ? tile.cols : tile.rows, cols = turned ? tile.rows : tile.cols;
      const double tiles = static_cast<double>(ceil_div(p.m, rows)) * ceil_div(p.n, cols) * p.batch;
      const double area = rows * cols / 1024.0;
      for (const int parts : kParts) {
        const int64_t k = ceil_div(p.k, parts);
        if (parts > 1 && (p.batch > 1 || k < kShortestPart)) break;
        const double mean = tiles * parts / device.sms, busiest = std::ceil(mean);
        const double step =
            std::max(model.latency + area * model.ffma, busiest * (model.issue + area * model.ffma)) * slow;
        const double compute = (step * k + area * model.ends * busiest) * kH200.clock_ghz / device.clock_ghz;
        const double adding = parts > 1 ? sum + model.sum_part * parts + model.sum_moves * part * parts : 0;
        best = std::min(best, model.launch + model.block * mean + std::max(compute, memory) + adding);
      }
    }
  return best;
}

double vector_seconds(const Problem& p, double bandwidth) {
  const AtenVectorModel& model = models().aten_vector;
  const bool along_k = p.n == 1 ? p.a.col == 1 : p.b.row == 1;
  const int64_t size = std::max(p.m, p.n);
  const double rows = along_k ? static_cast<double>(size * p.batch) : 0;
  const double read = std::max(bytes(p) / (model.bandwidth * bandwidth), rows * model.row);
  const double shared = (along_k ? model.along_k : model.across) + read + (p.k < kVectorLong ? 0 : model.sum);
  if (along_k || p.batch > 1 || size < kUnsharedColumns || size * p.k >= kUnsharedElements) return shared;
  return std::max(shared, model.unshared + model.unshared_step * static_cast<double>(p.k));
}

double few_rows_seconds(const Problem& p, double bandwidth) {
  const AtenRowsModel& model = models().aten_rows;
  const bool along_k = p.b.row == 1;
  const double columns = static_cast<double>(std::max(p.n, kFewestColumns));
  const double streamed = 4 * p.batch * columns * p.k * std::max(1.0, p.m / model.rows);
  const double share = along_k ? model.along_k : model.across;
  const double step = along_k ? model.step_along_k : model.step_across;
  const double read = std::max(std::max(streamed, bytes(p)) / (share * bandwidth), columns * p.batch * model.column);
  return model.launch + model.row * p.m + std::max(step * p.k, read);
}

}  // namespace

double aten_seconds(const Problem& p, const Device& device) {
  if (p.m == 1 && p.n == 1 && p.batch == 1 && p.k <= kDotLongest) {
    return models().aten.launch + models().aten_vector.dot_step * static_cast<double>(std::min(p.k, kDotSteps));
  }
  const double bandwidth = device.bandwidth_gbs * 1e9;
  double seconds = tiled_seconds(p, device);
  if (std::min(p.m, p.n) == 1 && (p.k > 1 || p.batch > 1)) seconds = std::min(seconds, vector_seconds(p, bandwidth));
  if (p.m <= kMostRows && p.a.col == 1) seconds = std::min(seconds, few_rows_seconds(p, bandwidth));
  return seconds;
}

// Factor on the prediction, which is the time of cuBLAS's fastest pick. If k is long and an operand lies along it,
// cuBLAS often picks a slower kernel, and is hardly ever faster than predicted.
double aten_caution(const Problem& p) {
  const bool along_k = p.a.col == 1 || p.b.row == 1;
  const bool long_k = along_k && p.batch == 1 && p.k >= kLongK && p.m > kMostRows && p.n > 1;
  return long_k ? models().choice.caution_long_k : models().choice.caution;
}

}  // namespace sgemm
