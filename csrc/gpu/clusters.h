// Capacity of a GPU for clusters of blocks.
#pragma once
#include <cstdint>

namespace sgemm {

inline constexpr int kTileCluster = 2;  // most blocks that share a tile as a cluster

// Returns the number of clusters of `blocks` blocks that run at once if a block fills an SM. Clusters stay within a
// GPC, and some GPCs lack a few SMs.
inline int64_t clusters_at_once(int sms, int blocks) { return (blocks > 2 ? sms / 11 * 10 : sms) / blocks; }

}  // namespace sgemm
