// Launches the product of few rows, or columns.
#include "../../gpu/launch_cluster.cuh"
#include "../few_rows/few_rows.cuh"
#include "launches.h"
#include "read_redone.cuh"

namespace sgemm::split {
namespace {

template <int COLS, bool B_ALONG_N>
void launch_cols(const Job& job, int64_t blocks, Stream stream) {
  constexpr int kBytes = FewRowsRing<COLS>::kBytes + kStagingBytes;
  with_constant(!job.a.along_k, [&](auto a_along_m) {
    launch_with_memory<split_few_rows<COLS, a_along_m, B_ALONG_N>>(blocks, kProductThreads, kBytes, kBytes, 1, stream,
                                                                   job);
  });
}

}  // namespace

void launch_few_rows(const Job& job, int cols, int64_t blocks, Stream stream) {
  if (!job.b.along_k) return launch_cols<64, true>(job, blocks, stream);
  if (cols == 8) return launch_cols<8, false>(job, blocks, stream);
  if (cols == 16) return launch_cols<16, false>(job, blocks, stream);
  if (cols == 32) return launch_cols<32, false>(job, blocks, stream);
  launch_cols<64, false>(job, blocks, stream);
}

Redone redone_in_few_rows() { return redone_here(); }

}  // namespace sgemm::split
