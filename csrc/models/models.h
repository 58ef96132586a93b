// The physical quantities that predictions are made of, at most a dozen for each cost model. `python -m benchmarks fit`
// takes their names from here and finds their values, except those of ChoiceModel, which are set by hand.
//
// Times are in seconds at kH200's clock. Shares are fractions of the bandwidth that a copy reaches, or of the FFMA
// peak. Other units are named. The number in front of each text is the order of magnitude at which a fit begins.
#pragma once
#include <cmath>

namespace sgemm {

// Quantities that no single row owns, and those of the ladder's rungs.
struct ChoiceModel {
  double caution;         // 0.84: factor on PyTorch's predicted time, so that no other row is preferred on a guess
  double caution_long_k;  // 1: the same for a long k, unless the output is a vector or has few rows
  double launch;          // 3e-6: launch of a rung, or of a kernel that packs an operand or computes f
  double reachable;       // 0.88: share of a memory's nominal bandwidth that a copy reaches
  double scattered;       // 2: factor on a rung that reads element by element, along the wrong dimension
};

// PyTorch's kernel, as tiles of cuBLAS. Times of a tile are for 32 x 32 elements where the text says so.
struct AtenModel {
  double launch;       // 2e-6: launch with nothing to do
  double block;        // 1e-7: each block of an SM
  double latency;      // 1e-8: step of k of a tile that is alone on its SM
  double issue;        // 1e-8: step of k of each of many tiles of an SM, independent of their size
  double ffma;         // 4e-9: added to a step of k per 32 x 32 elements
  double ends;         // 2e-7: beginning and end of a tile, per 32 x 32 elements
  double along_k;      // 1: factor on steps for each operand that is contiguous along k
  double sum;          // 2e-6: adding up parts of k
  double sum_part;     // 5e-8: adding up, each part
  double sum_moves;    // 2: number of times that each part of D is moved
  double bandwidth;    // 0.5: share
  double sum_along_k;  // 5e-7: adding up, each operand that is contiguous along k
};

// A has few rows and is contiguous along k; B is read once.
struct AtenRowsModel {
  double launch;        // 2e-6
  double row;           // 1e-7: each row of A
  double rows;          // 5: largest number of rows at which B is read at full bandwidth
  double step_across;   // 1e-8: step of k of a block, B contiguous along n
  double step_along_k;  // 1e-8: the same, B contiguous along k
  double across;        // 0.5: share of the bandwidth, B contiguous along n
  double along_k;       // 0.5: the same, B contiguous along k
  double column;        // 1e-10: minimum time of a column, which a short k doesn't reduce
};

// Matrix times vector, and vector times vector.
struct AtenVectorModel {
  double across;         // 2e-6: launch, first and last element; the matrix is not contiguous along k
  double along_k;        // 2e-6: the same; the matrix is contiguous along k
  double bandwidth;      // 0.5: share
  double row;            // 1e-11: minimum time of a row of a matrix that is contiguous along k
  double sum;            // 1e-6: adding up the parts of a long k
  double unshared;       // 2e-6: launch of the kernel whose blocks don't share k
  double unshared_step;  // 1e-8: step of k of that kernel
  double dot_step;       // 2e-8: step of k of a vector times a vector
};

struct SkinnyModel {
  double fixed;               // 5e-6: launch, first and last element
  double wave;                // 5e-6: each later wave of blocks, which waits for others to end
  double sum;                 // 3e-6: adding up slices, which takes one more launch
  double read_along_k;        // 0.5: share of the bandwidth, A along k
  double read_along_m;        // 0.5: the same, A along m, up to 8 columns
  double read_along_m_16;     // 0.5: the same, A along m, 16 columns
  double ffma_along_k;        // 0.3: share of the FFMA peak, A and B along k
  double ffma_across_b;       // 0.3: the same, A along k, B along n
  double ffma_across_wide_b;  // 0.3: the same, B wider than the widest tile
  double ffma_along_m;        // 0.3: the same, A along m
  double block_bandwidth;     // 5e10: bytes per second of a block that is alone
  double scattered;           // 1: factor if elements are not read 16 bytes at a time
};

struct SmallModel {     // tiles are multiples of 16 x 16
  double fixed;         // 2e-6: from the launch to the first element, and from the last sum to memory
  double turn;          // 5e-7: step of k of a warp
  double alone;         // 1e-7: added per 16 x 16 if an SM has one block, whose waits nothing hides
  double step;          // 1e-8: step of all warps of a block, which an SM does one after the other, per 16 x 16
  double read;          // 1e-8: reads of such a step, per 16 rows of A or columns of B
  double block;         // 2e-7: end of a block, per 16 x 16
  double slower;        // 1: added factor on reads of an operand that lies along k or is read element by element
  double cluster;       // 8e-7: adding up the sums of a cluster's blocks
  double next_cluster;  // 2e-7: added for each further block of an SM
  double sum;           // 1e-6: adding up slices
  double sum_moves;     // 2: number of times that a slice's sums are moved
  double busiest;       // 0.5: weight of the busiest SM's blocks beyond the mean of all SMs
};

struct TallModel {
  double fixed;         // 2e-6: from the launch to the first row, and from the last row to memory
  double later_step;    // 2e-7: wait for each later step of k of a row
  double panel;         // 1e-8: reading B before the first multiplication, per k and column of a thread
  double tile;          // 1e-8: SM time of a warp's tile, per column of a thread
  double four;          // 1e-9: SM time of four k of that tile, per column of a thread
  double step_along_k;  // 2e-8: added to a step if rows are contiguous along k
  double singles;       // 2e-8: added to a step if rows are read element by element
  double warp_four;     // 2e-8: four k of a warp that is alone
  double wave;          // 1e-6: from the end of a wave of blocks until the next blocks multiply
  double stored;        // 2e-8: each column of a thread that isn't stored four elements at a time
  double sum;           // 3e-6: adding up pieces of k outside D
  double bandwidth;     // 0.5: share
};

struct TinyModel {
  double launch;         // 2e-6
  double step;           // 5e-7: step of k of a block
  double element;        // 5e-7: added to a step if the block reads element by element
  double read_quad;      // 20: cycles of a warp to copy four elements to shared memory at once
  double read_element;   // 50: cycles to copy the four one by one
  double store_quad;     // 10: cycles to store four elements at once
  double store_element;  // 50: cycles to store the four one by one
  double ffma;           // 2: cycles of an FFMA with its operands
  double bandwidth;      // 0.5: share
};

struct LargeModel {
  double launch;          // 2.5e-6
  double ffma;            // 0.87: share of the FFMA peak between a tile's beginning and its end
  double tile;            // 4e-6: beginning and store of a tile
  double elements;        // 1.3e-5: added if elements are stored one by one
  double exchange;        // 2e-6: the same in clusters, whose lanes exchange their sums
  double cluster;         // 1e-6: each block of a cluster after the first
  double share;           // 1.4e-5: sharing tiles
  double part;            // 1.5e-6: each part of a shared tile
  double sum;             // 4e-6: adding up slices, which takes one more launch
  double copy;            // 2e-6: copy of an operand that no tensor map can describe, without its bytes
  double copy_bandwidth;  // 0.7
};

struct SplitModel {          // tiles of 128 x 128
  double launch;             // 2e-6: launch of the convert kernel and the product, with nothing to do
  double step;               // 2e-7: step of k of a tile, per 16-bit product
  double tile;               // 1e-6: filling the pipeline, and storing
  double half_step;          // 0.5: factor on tiles of half the size
  double cluster;            // 1e-6: adding up the parts of a cluster, per block after the first
  double share;              // 3e-6: sharing the tiles that are left over
  double part;               // 5e-7: each block that shares such a tile
  double sum;                // 3e-6: adding up slices of k, which takes one more launch
  double sum_moves;          // 2: number of times that a slice's sums are moved
  double convert;            // 0.5: share of the bandwidth that the convert kernel reaches
  double convert_across;     // 1: factor on that kernel for an operand that is not contiguous along k
  double convert_unaligned;  // 1: factor on that kernel for an operand that is read element by element
};

struct SplitStreamedModel {  // tiles of 128 x 64
  double launch;             // 2e-6
  double other_launch;       // 2e-6: launch of the convert kernel for B, or of the sum of slices
  double step;               // 5e-7
  double both_step;          // 1e-6: step of a tile of 128 x 128, if both operands are split
  double both_tile;          // 6e-6: beginning and end of such a tile
  double both_half;          // 0.75: factor on both, for tiles of half the size
  double tile;               // 2e-6
  double sum_moves;          // 2: number of times that a slice's sums are moved
  double convert;            // 0.5: share of the bandwidth that the convert kernel reaches for B
  double copied_row;         // 4e-8: a step's row that is copied element by element
  double both_copied_row;    // 4e-8: the same, if both operands are split
  double bandwidth;          // 0.8: share
};

// Also made of SplitModel's quantities: splitting the larger operand, and adding up slices.
struct SplitFewModel {
  double launch;       // 2e-6: launch of both kernels
  double convert;      // 1: share of the bandwidth that the convert kernel reaches for the few columns
  double step;         // 3e-7: step of k of a tile
  double step_column;  // 2e-9: added to a step for each column
  double tile;         // 3e-6: filling the pipeline, and storing
  double share;        // 2e-6: each shared tile that a block takes in turn
  double part;         // 1e-7: each block that shares a tile
  double part_column;  // 4e-9: added to that for each column
  double bandwidth;    // 1: share
};

struct SplitTallModel {
  double fixed;       // 2e-6
  double fill;        // 3e-7: splitting B, per 8 columns of a warp
  double fill_step;   // 2e-7: added to that for each step of k
  double tile;        // 2e-8: SM time of a tile
  double step;        // 1e-8: SM time of a tile's step of k
  double group;       // 5e-9: SM time of 8 columns of a tile
  double group_step;  // 5e-9: SM time of a step of k of 8 columns
  double last_group;  // 2e-7: 8 columns of a warp's last tile, which no other tile hides
  double unaligned;   // 1e-8: added to a step that isn't read 16 bytes at a time
  double added;       // 1e-7: added to 8 columns if C is read
  double stored;      // 2e-8: added to 8 columns that aren't stored four elements at a time
  double bandwidth;   // 0.5: share
};

struct UnsplitModel {  // tiles of 256 x 128
  double launch;       // 4e-6: launch of the product and of the kernel after it
  double step;         // 8e-7: 64 of k of a tile
  double tile;         // 2e-6: filling the pipeline, and storing
  double half_step;    // 0.6: factor on steps of tiles of half the size
  double half_tile;    // 0.6: factor on `tile` for tiles of half the size
  double long_step;    // 8e-7: 64 of k of a tile whose sums stay in the tensor cores for longer windows
  double half_long;    // 0.6: factor on `long_step` for tiles of half the size
  double cluster;      // 1e-6: adding up the parts of a cluster, per block after the first
  double share;        // 5e-6: sharing the tiles that are left over
  double part;         // 5e-7: each block that shares such a tile
  double bandwidth;    // 0.7: share
  double searched;     // 7e-11: searching a byte of a stage for subnormal elements
};

// The share of the FFMA peak that a rung of the ladder reaches on large products.
struct RungShare {
  const char* row;
  double share;
};

struct Models {
  ChoiceModel choice;
  AtenModel aten;
  AtenRowsModel aten_rows;
  AtenVectorModel aten_vector;
  SkinnyModel skinny;
  SmallModel small;
  TallModel tall;
  TinyModel tiny;
  LargeModel large;
  SplitModel split;
  SplitStreamedModel split_streamed;
  SplitFewModel split_few;
  SplitTallModel split_tall;
  UnsplitModel unsplit;
};

// Returns the time of two activities that overlap. If they take about as long, neither hides the other completely.
inline double overlapped(double a, double b) { return std::cbrt(a * a * a + b * b * b); }

// Returns this process's quantities: the H200's, unless a fit has changed them by set_models().
const Models& models();

void set_models(const Models& models);

}  // namespace sgemm
