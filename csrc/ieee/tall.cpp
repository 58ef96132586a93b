#include "tall.h"

#include <algorithm>

#include "../problem/cut.h"
#include "../problem/fastest.h"
#include "../models/models.h"
#include "bound.h"

namespace sgemm::ieee {
namespace {

constexpr int64_t kSumBytes = int64_t{32} << 20;                 // workspace for sums, which stay in the L2 cache
constexpr int kSharedBytes = 227 * 1024, kReservedBytes = 1024;  // shared memory per SM, and part reserved per block

struct Place {
  bool along_k;           // A is contiguous along k
  bool vector;            // A can be read 16 bytes at a time
  int64_t groups;         // blocks per panel
  int64_t blocks, waves;  // blocks per SM in total, and their waves
};

double seconds(int index, const Problem& p, const Place& place, const Device& device) {
  const TallModel& model = models().tall;
  const TallTile& tile = kTallTiles[index];
  const int64_t tiles_m = ceil_div(p.m, TallTile::rows()), tiles_n = ceil_div(p.n, tile.cols());
  const int64_t turns = ceil_div(tiles_m, place.groups * Tall::kWarps);  // tiles per warp
  const double of_block = static_cast<double>(std::min<int64_t>(turns * Tall::kWarps, tiles_m));
  const double fours = static_cast<double>(ceil_div(p.k, 4)), steps = static_cast<double>(ceil_div(p.k, Tall::BK));
  const TallStores stores = tall_stores(index, p);
  const bool stores_fours = stores == TallStores::kAlongN || stores == TallStores::kAlongM;

  const double of_tile = tile.tn * (model.tile + fours * model.four + (stores_fours ? 0 : model.stored)) +
                         steps * ((place.along_k ? model.step_along_k : 0) + (place.vector ? 0 : model.singles));
  const double compute =
      std::max(place.blocks * of_block * of_tile,
               double(place.waves * turns) * fours * model.warp_four + (place.waves - 1) * model.wave);

  const double again =
      4.0 * p.m * p.k * p.batch * std::max<int64_t>(0, tiles_n - 1);  // from the L2 cache, twice as fast
  double moved = bytes(p) + again / 2;
  // Sectors of D that several panels share are written several times.
  const bool cut = p.d.row % kSectorFloats || tile.cols() < kSectorFloats;
  if (p.d.col == 1 && (tiles_n > 1 || (cut && !place.along_k)))
    moved += double(p.m) * tiles_n * p.batch * 4 * kSectorFloats / (cut ? 1 : 2);
  const double memory = moved / (model.bandwidth * device.bandwidth_gbs * 1e9);
  return model.fixed + (steps - 1) * model.later_step + place.waves * model.panel * p.k * tile.tn + memory +
         compute * kH200.clock_ghz / device.clock_ghz;
}

// Returns the longest piece of k.
int64_t piece_of(int64_t k) {
  const int64_t most = k <= 2 * Tall::kMostK ? Tall::kMostK : Tall::kPieceK;
  return even_piece(k, std::max<int64_t>(1, ceil_div(k, most)), Tall::BK);
}

Pieces pieces_of(const Problem& p) {
  const int64_t depth = piece_of(p.k);
  return pieces_of_k(p, depth, std::max(p.k, depth), kSumBytes);
}

// Plans a piece with the given tile.
TallPiece in_tile(int tile, const Problem& problem, const Device& device) {
  const bool swapped = problem.m < problem.n;
  const Problem p = swapped ? transposed(problem) : problem;
  Place place = {};
  place.along_k = runs_along_k(p.a.col, p.a.row);
  place.vector = has_aligned_rows<4>(place.along_k ? p.a : transposed(p.a));
  const int64_t most = std::max<int64_t>(1, ceil_div(ceil_div(p.m, TallTile::rows()), Tall::kWarps));
  const int bytes = tall_bytes(tile, place.along_k, p.k) + kReservedBytes;
  const int64_t resident = std::min(kTallTiles[tile].blocks, kSharedBytes / bytes);
  const int64_t panels = std::max<int64_t>(1, ceil_div(p.n, kTallTiles[tile].cols()) * p.batch);
  place.groups = std::clamp<int64_t>(device.sms * resident / panels, 1, most);
  place.blocks = ceil_div(panels * place.groups, device.sms);
  place.waves = ceil_div(place.blocks, resident);
  return {tile, swapped, place.groups, seconds(tile, p, place, device)};
}

// The plan of the whole problem; `find` plans one piece.
template <class Find>
Plan planned(const Problem& p, const Find& find) {
  const Pieces cut = pieces_of(p);
  const int64_t of_k = cut.of_k(p);
  const Problem first = cut.first(p);
  const TallPiece piece = find(first);
  const TallPiece judged = of_k == 1 && is_typical(p) ? piece : find(typical(first, of_k > 1));
  double seconds = judged.seconds * static_cast<double>(of_k);
  if (!cut.in_d) {
    const int64_t parts = p.batch * ceil_div(p.m, cut.m) * ceil_div(p.n, cut.n);
    seconds = (seconds + models().tall.sum) * static_cast<double>(parts);
  }
  return {seconds, cut.sum_bytes(), TallPlan{cut, piece}};
}

}  // namespace

TallStores tall_stores(int tile, const Problem& p) {
  const int tn = kTallTiles[tile].tn;
  if (tn == 1 ? p.d.col == 1 : tn == 2 ? has_groups<2>(p.d) : has_quads(p.d)) return TallStores::kAlongN;
  if (!runs_along_k(p.a.col, p.a.row) && has_quads(transposed(p.d))) return TallStores::kAlongM;
  return p.d.col == 1 ? TallStores::kRows : p.d.row == 1 ? TallStores::kColumns : TallStores::kSingles;
}

int tall_bytes(int tile, bool a_along_k, int64_t k) {
  const TallTile& t = kTallTiles[tile];
  const int64_t b = ceil_div(k, Tall::BK) * Tall::BK * t.cols();
  const int64_t ring = t.stages * TallTile::rows() * (Tall::BK + (a_along_k ? 4 : 0)), staged = tall_staged(t.cols());
  return static_cast<int>((b + Tall::kWarps * (ring + staged)) * sizeof(float));
}

// A piece is one chain of FMAs. Pieces are then added one by one, in D or in the workspace.
double Tall::error_bound(int64_t k) {
  const int64_t piece = piece_of(k);
  return k <= piece ? static_cast<double>(k) : ieee::error_bound(k, piece + ceil_div(k, piece) - 1);
}

Plan Tall::plan(const Problem& p, const Device& device) {
  return planned(p, [&](const Problem& piece) {
    return fastest<TallPiece>([&](const auto& visit) {
      for (int tile = 0; tile < kTallCount; ++tile) visit(in_tile(tile, piece, device));
    });
  });
}

void Tall::each_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  for (int tile = 0; tile < kTallCount; ++tile)
    visit(planned(p, [&](const Problem& piece) { return in_tile(tile, piece, device); }));
}

std::string Tall::cut(const Plan& plan) {
  const TallPiece piece = plan.own<TallPlan>().piece;
  return Cut().tile(TallTile::rows(), kTallTiles[piece.tile].cols()).number("swapped", piece.swapped, 0).text();
}

}  // namespace sgemm::ieee
