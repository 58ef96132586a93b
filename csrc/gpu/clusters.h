// How many clusters of blocks a GPU holds.
#pragma once
#include <cstdint>

namespace sgemm {

// How many clusters of `blocks` run at once, if a block fills an SM. Clusters stay within a GPC, of which some lack a
// few SMs.
inline int64_t clusters_at_once(int sms, int blocks) { return (blocks > 2 ? sms / 11 * 10 : sms) / blocks; }

}  // namespace sgemm
