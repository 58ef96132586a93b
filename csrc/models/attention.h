// The quantities that attention's time is predicted from. They were fitted by hand to times on an NVIDIA H200 (PyTorch
// 2.11, 2026-11-29), our kernel's to times of 25 problems, PyTorch's to times of 44. Of the 25 predictions, 18 are
// within 10 % and all within 22 %. Lists of four are for the depths 32, 64, 96 and 128.
#pragma once

namespace sgemm {

// Seconds are at kH200's clock, shares those of a copy's bandwidth.
struct AttentionModel {
  double launch_own, launch;  // where thread blocks convert for themselves, or for all
  double tile;                // beginning and end of a tile of queries
  double block[4];            // a tile's block of keys
  double masked, causal;      // factors on a block with a mask, or of causal attention
  double convert[4];          // a block of K, or of V
  double beside;              // what a converted block costs those who compute
  double bandwidth;           // share
};
inline constexpr AttentionModel kAttention = {
    2e-6, 7e-6, 2e-6, {1.5e-6, 2.5e-6, 1.7e-6, 2.1e-6}, 1.25, 1.1, {2.0e-6, 3.4e-6, 2.7e-6, 3.4e-6}, 0.6e-6, 0.94};

// PyTorch's memory-efficient kernel, with tiles of 64 queries and blocks of 64 keys.
struct AtenAttentionModel {
  double launch;
  double tile;         // each tile of an SM
  double alone[4];     // a block of keys of a tile that is alone on its SM
  double together[4];  // each block of keys of an SM with many tiles
  double masked;       // factor on a block with a mask
  double bandwidth;    // share
};
inline constexpr AtenAttentionModel kAtenAttention = {
    4.9e-6, 0.6e-6, {3.8e-6, 6.3e-6, 4.9e-6, 6.8e-6}, {3.6e-6, 4.6e-6, 5.8e-6, 6.2e-6}, 1.2, 0.85};

// The gradients. They were fitted by hand as well, to 31 problems on the same device, before thread blocks claimed
// tiles: of ours, 23 predictions were within 10 % then. Lists of two are for the depths 64 and 128.
struct GradientsModel {
  double launch;
  double tile;                 // beginning and end of a tile
  double keys[2], queries[2];  // a pair of 128 rows and a block of 64, for dK and dV, and for dQ
  double masked[2];            // factor on both with a mask
  double bandwidth;            // share, of the pass in front
  // The kernel that keeps planes in shared memory. These two were fitted to six problems.
  double launch_resident, two_heads;
};
inline constexpr GradientsModel kGradients = {8e-6, 3e-6, {2.3e-6, 4.55e-6}, {1.63e-6, 3.25e-6}, {1.39, 1.19}, 0.82,
                                              4e-6, 20e-6};

// PyTorch's memory-efficient kernel, with blocks of 64 queries and 64 keys.
struct AtenGradientsModel {
  double launch;
  double tile;         // each tile of an SM
  double alone[2];     // a block of a tile that is alone on its SM
  double together[2];  // each block of an SM with many tiles
  double masked;       // factor on a block with a mask
};
inline constexpr AtenGradientsModel kAtenGradients = {10e-6, 6e-6, {17e-6, 30e-6}, {9.9e-6, 18.6e-6}, 1.04};

}  // namespace sgemm
