// The sizes of a split product's tiles, steps and planes, and the names of its formats.
#pragma once
#include <cstdint>

namespace sgemm::split {

inline constexpr int kTile = 128;  // rows of a panel; the most rows and columns of a block's tile of C
inline constexpr int kStep = 32;   // k of one step of the product
inline constexpr int kChain = 32;  // k of one chain of FMAs, which recomputes an element
// The promotion interval: the k that the tensor cores add up before the float32 adder takes the sum. The longer
// interval is for batch-invariant problems, and for problems of more than kManySteps steps whose k exceeds it, where
// additions would cost time.
inline constexpr int kWindow = 32, kLongWindow = 64;

// Steps of 128 x 128 x kStep, beyond which the chip's power is the limit, so that each promotion costs time.
inline constexpr int64_t kManySteps = 10000;
inline constexpr int kOnTheFlySteps = 2;     // steps of an operand split in registers that are multiplied together
inline constexpr int kMaxSlice = 8192;       // largest k that the convert kernel holds in shared memory
inline constexpr int kRowBytes = kStep * 4;  // one row of a panel in a pair of planes
inline constexpr int kPanelBytes = kTile * kRowBytes;
inline constexpr int kHalfPlaneBytes = kPanelBytes / 4;  // 64 rows of a plane
inline constexpr int kLowerEntries = 64;                 // flags of a panel: its lower planes hold nonzero bits

// A row's packed scale and threshold, and its packed statistics: row_scale.cuh and guard.cuh define the fields.
using RowScale = uint32_t;
using RowStats = uint32_t;

// The number formats of an element's planes; format.cuh defines them.
struct Fp16x3;
struct Bf16x6;
template <class F>
inline constexpr int kPairs = 1;  // pairs of 16-bit planes per operand
template <>
inline constexpr int kPairs<Bf16x6> = 2;

}  // namespace sgemm::split
