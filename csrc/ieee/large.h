// Row for large products by FFMA on Hopper: the choice of plans. Pure host code.
#pragma once
#include "../problem/pieces.h"

namespace sgemm::ieee {

struct Large {
  static constexpr const char* kIdea = "large tiles fed by bulk copies, 8 x 16 per thread; tiles left over are shared";
  static constexpr const char* kSource = "ieee/large_sm90a.cu";
  static constexpr int BM = 256, BN = 128, BK = 32, TM = 8, TN = 16;
  static constexpr int kThreads = BM * BN / (TM * TN);  // threads that multiply
  static constexpr int kBlockThreads = kThreads + 128;  // plus the producer's warpgroup
  static constexpr bool kActivates = false;             // f's code for 128 sums would be several times the rest
  static constexpr Reads kReads = Reads::kAnyStrides;
  static constexpr int kArch = 90;

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  // Units of 2^-24 |A||B|: whole tiles are one chain of k FMAs, and no other order of additions rounds more often.
  static double error_bound(int64_t k) { return static_cast<double>(k); }
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_SM90A is defined
};

// Layout of the workspace. A block has parts of at most two shared tiles.
struct LargeLayout {
  size_t copy_a, copy_b;  // packed_copy() of A's transpose and of B
  size_t parts;           // (sharing + left, sums of a thread, threads) float
  size_t arrived;         // (left) uint32; number of parts that have arrived
  size_t partials;        // (slices, m, n) float, if there are several
  size_t total;
};

// All blocks have equally many whole tiles; they share the tiles that are left over evenly along k. If there are few
// tiles, each one gets a cluster of blocks instead.
struct LargePlan {
  bool swapped;         // the transposed product, D^T = B^T A^T
  bool pack_a, pack_b;  // operands copied first: contiguous along m or n, with rows aligned to 16 bytes
  int cluster;          // blocks that share a tile of 128 rows, or a slice of it; 0 if tiles have 256 rows
  int slices;           // slices of k, added up by a second kernel
  int64_t whole, left;  // number of whole tiles, and of tiles that blocks share
  int blocks;           // grid size
  int sharing;          // number of blocks with shared tiles; 0 if no tile is shared
  double seconds;       // predicted time
  LargeLayout layout;
};
LargePlan large_plan(const Problem& p, const Device& device);

// Pieces whose m, n and k fit in a tensor map. A longer k is cut into slices, whose sums lie at the start of the
// workspace. The plan belongs to the last piece, which on today's GPUs is the only one. launch() plans the pieces of
// larger problems one by one.
inline constexpr int64_t kLargeExtent = int64_t{1} << 30;
inline Pieces large_pieces(const Problem& p) {
  Pieces cut = pieces_of_k(p, kLargeExtent, kLargeExtent, int64_t{32} << 20);
  if (cut.in_d) cut.m = cut.n = kLargeExtent;
  return cut;
}
inline size_t large_slices_bytes(const Problem& p) { return ceil_div(large_pieces(p).sum_bytes(), 256) * 256; }

}  // namespace sgemm::ieee
