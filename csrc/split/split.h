// The family's rows: what the table and the dispatch want to know of them.
#pragma once
#include "../gemm.h"

namespace sgemm::split {

constexpr int kSplitArch = 90;  // wgmma is sm_90a's alone

double seconds_fp16x3(const Problem& p, const Device& device);
double seconds_bf16x6(const Problem& p, const Device& device);
size_t workspace_fp16x3(const Problem& p, const Device& device);
size_t workspace_bf16x6(const Problem& p, const Device& device);

// Only where SGEMM_SM90A is defined.
void launch_fp16x3(const Problem& p, const Context& context);
void launch_bf16x6(const Problem& p, const Context& context);

struct Redone {
  uint64_t elements, tiles;
};
// What the guard had redone on the current device since the library was loaded, without waiting for work under way.
Redone redone();

}  // namespace sgemm::split
