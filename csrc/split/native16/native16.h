// The split family's row of the table for operands that are bfloat16 in memory, and its plans. Pure host code.
#pragma once
#include <array>

#include "../../gpu/stream_k.h"
#include "../../problem/views.h"
#include "../bound.h"

namespace sgemm::split {

struct Native16 {
  static constexpr const char* kIdea = "bfloat16 operands as they lie in memory, one tensor-core product";
  static constexpr const char* kSource = "split/launch/native16_sm90a.cu";
  static constexpr std::array kTiles = {TileSize{256, 128}, TileSize{128, 128}};
  static constexpr int BM = kTiles[0].bm, BN = kTiles[0].bn, BK = 64, TM = BM / 64, TN = 32;
  static constexpr int kThreads = 256;  // threads that hold sums
  static constexpr bool kActivates = true, kTakesPlanes = false;
  static constexpr Reads kReads = Reads::kMappedBFloat16;
  static constexpr int kArch = 90;  // only sm_90a has wgmma
  static constexpr int64_t kAutoFrom = 0;
  static_assert(BK * sizeof(uint16_t) == 128, "a row of a panel is one of the swizzle's");

  static Plan plan(const Problem& p, const Device& device);
  static void each_plan(const Problem& p, const Device& device, const PlanVisitor& visit);
  static std::string cut(const Plan& plan);
  static void launch(const Problem& p, const Plan& plan, const Context& context);  // only where SGEMM_SM90A is defined

  // Operands are not rounded and products are exact: only sums round. Elements with a subnormal operand are chains of
  // FMAs. The bound is the larger one of both.
  static double error_bound(int64_t k) { return std::max(sum_bound(k, kLongWindow), chains_bound(k)); }

  // Returns the problem that is solved, p or its transpose: D's rows lie along n.
  static Problem solved(const Problem& p) { return p.d.col != 1 && p.d.row == 1 ? transposed(p) : p; }
};

// Threads of a block that look for subnormal elements. Number of blocks, and of their warps, of the kernel before the
// product.
inline constexpr int kSearchers = 96, kSearchBlocks = 264, kSearchFlags = kSearchBlocks * 8;

// The row's own part of a plan: how tiles are dealt out to persistent blocks. Alternatively, each cluster has one tile
// of 128 x 128, and each of its blocks has a part of k.
struct Native16Plan {
  StreamK deal;
  int blocks;            // number of blocks of the grid
  int cluster;           // blocks that share a tile
  bool long_windows;     // windows have kLongWindow of k
  StreamKLayout layout;  // of the workspace; behind it, a uint32 for each warp that searches (subnormals.cuh)
};

}  // namespace sgemm::split
