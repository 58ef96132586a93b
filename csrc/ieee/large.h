// The row for large products by FFMA on Hopper: how they are cut up. Pure host code.
#pragma once
#include "../problem/pieces.h"

namespace sgemm::ieee {

struct Large {
  static constexpr const char* kIdea = "large tiles fed by bulk copies, 8 x 16 per thread; tiles left over are shared";
  static constexpr const char* kSource = "ieee/large_sm90a.cu";
  static constexpr int BM = 256, BN = 128, BK = 32, TM = 8, TN = 16;
  static constexpr int kThreads = BM * BN / (TM * TN);  // that multiply
  static constexpr int kBlockThreads = kThreads + 128;  // with the one that copies
  static constexpr bool kActivates = false;             // f's code for 128 sums would be several times the rest
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  // In units of 2^-24 |A||B|: whole tiles are one chain of k FMAs, and no other order rounds more often.
  static double error_bound(int64_t k) { return static_cast<double>(k); }
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_SM90A is defined
};

// Blocks have equally many whole tiles each; those that are left over, they share evenly along k. Or a cluster has one
// tile, where they are few.
struct LargePlan {
  bool swapped;         // the transposed product, D^T = B^T A^T
  bool pack_a, pack_b;  // copied first: to lie along m or n, in rows that begin at multiples of 16 bytes
  int cluster;          // blocks that share a tile of 128 rows, or a slice of it; 0 where tiles have 256
  int slices;           // of k, added up at the end
  int64_t whole, left;  // tiles
  int blocks;           // of the grid
  int sharing;          // of them; 0 if no tile is shared
  double seconds;       // predicted
};
LargePlan large_plan(const Problem& p, const Device& device);

// Where things lie in the workspace. A block has a part of two shared tiles at most.
struct LargeLayout {
  size_t copy_a, copy_b;  // packed_copy() of A's transpose and of B
  size_t parts;           // (sharing + left, sums of a thread, threads) float
  size_t arrived;         // (left) uint32
  size_t partials;        // (slices, m, n) float, if there are several
  size_t total;
};
LargeLayout large_layout(const Problem& p, const LargePlan& plan);

// Pieces whose m, n and k a tensor map can count. Those of a longer k are slices, added up in the workspace in front of
// all else. The plan is that of the last piece: of the only one, on today's GPUs. Others are planned as they come.
inline constexpr int64_t kLargeExtent = int64_t{1} << 30;
inline Pieces large_pieces(const Problem& p) {
  Pieces cut = pieces_of_k(p, kLargeExtent, kLargeExtent, int64_t{32} << 20);
  if (cut.in_d) cut.m = cut.n = kLargeExtent;
  return cut;
}
inline size_t large_slices_bytes(const Problem& p) { return ceil_div(large_pieces(p).sum_bytes(), 256) * 256; }

}  // namespace sgemm::ieee
