// What predictions are made of: for each cost model at most a dozen physical quantities. `python -m benchmarks fit`
// finds them, and takes their names from here; those of the first model are set by hand.
//
// Times are seconds at kH200's clock, shares of the bandwidth that a copy reaches or of the FFMA peak; other units are
// told. The number behind each name is its order of magnitude, where a fit begins.
#pragma once
#include <cmath>

namespace sgemm {

// What isn't a row's own, and rungs of the ladder.
struct ChoiceModel {
  double caution;         // 0.8: PyTorch's time counts so much; no other row shall be preferred on a guess
  double caution_long_k;  // 0.95: the same where k is long and the output is no vector and no few rows
  double launch;          // 3e-6: of a kernel that packs an operand, computes f, or is a rung
  double reachable;       // 0.88: share of a memory's nominal bandwidth that a copy reaches
  double scattered;       // 2: factor of a rung that reads element by element, along the wrong dimension
};

// PyTorch's kernel. Tiles of cuBLAS: times of `32 x 32` elements.
struct AtenModel {
  double launch;       // 2e-6: with nothing to do
  double block;        // 1e-7: of an SM, for each block
  double latency;      // 1e-8: a step of k of a tile that is alone on its SM
  double issue;        // 1e-8: a step of k of each of many, whatever their size
  double ffma;         // 4e-9: a step of k, more for each 32 x 32
  double ends;         // 2e-7: to begin and to end a tile, for each 32 x 32
  double along_k;      // 1: factor of steps, for each operand that lies along k
  double sum;          // 2e-6: to add up parts of k
  double sum_part;     // 5e-8: each part
  double sum_moves;    // 2: how often each part of D is moved
  double bandwidth;    // 0.5: share
  double sum_along_k;  // 5e-7: to add up, more for each operand that lies along k
};

// Few rows, of a matrix that lies along k: the other one is streamed.
struct AtenRowsModel {
  double launch;        // 2e-6
  double row;           // 1e-7: each row
  double rows;          // 5: so many rows are streamed at full bandwidth
  double step_across;   // 1e-8: a step of k of a block, B lying along n
  double step_along_k;  // 1e-8: B along k
  double across;        // 0.5: share of the bandwidth, B along n
  double along_k;       // 0.5: B along k
  double column;        // 1e-10: each column, however short k is
};

// Matrix times vector, and vector times vector.
struct AtenVectorModel {
  double across;         // 2e-6: launch, first and last element, the matrix not lying along k
  double along_k;        // 2e-6: lying along k
  double bandwidth;      // 0.5: share
  double row;            // 1e-11: each row of a matrix that lies along k, however short it is
  double sum;            // 1e-6: to add up a long k
  double unshared;       // 2e-6: launch of the kernel that doesn't share k
  double unshared_step;  // 1e-8: and its step of k
  double dot_step;       // 2e-8: a step of k of a vector times a vector
};

struct SkinnyModel {
  double fixed;               // 5e-6: launch, first and last element
  double wave;                // 5e-6: blocks that wait for others to end
  double sum;                 // 3e-6: to add up slices: one launch more
  double read_along_k;        // 0.5: share of the bandwidth
  double read_along_m;        // 0.5: for up to 8 columns
  double read_along_m_16;     // 0.5: for 16
  double ffma_along_k;        // 0.3: share of the FFMA peak, A and B along k
  double ffma_across_b;       // 0.3: A along k, B along n
  double ffma_across_wide_b;  // 0.3: the same beyond the widest tile
  double ffma_along_m;        // 0.3: A along m
  double block_bandwidth;     // 5e10: bytes per second of a block that is alone
  double scattered;           // 1: factor, of elements that are not read 16 bytes at a time
};

struct SmallModel {     // of tiles of 16 x 16, and a multiple of that
  double fixed;         // 2e-6: from the launch to the first element, and from the last sum to memory
  double turn;          // 5e-7: a step of k of a warp
  double alone;         // 1e-7: more for each 16 x 16, where nothing hides what a block waits for
  double step;          // 1e-8: a step of all warps of a block, as an SM does one after the other, for each 16 x 16
  double read;          // 1e-8: what such a step reads, for each 16 rows of A or columns of B
  double block;         // 2e-7: a block's end, for each 16 x 16
  double slower;        // 1: factor of reads, more for what lies along k or is read one by one
  double cluster;       // 8e-7: to add up what the blocks of a cluster have
  double next_cluster;  // 2e-7: each further block of an SM
  double sum;           // 1e-6: to add up slices
  double sum_moves;     // 2: how often a slice's sums are moved
  double busiest;       // 0.5: how far the busiest SM's blocks count, beyond the mean of all
};

struct TallModel {
  double fixed;         // 2e-6: from the launch to the first row, and from the last one to memory
  double later_step;    // 2e-7: until a row's next step of k is there
  double panel;         // 1e-8: B, before anything is multiplied: each of k and of a thread's columns
  double tile;          // 1e-8: a warp's tile, of an SM, each of a thread's columns
  double four;          // 1e-9: four of k of it, each of a thread's columns
  double step_along_k;  // 2e-8: a step of rows that lie along k
  double singles;       // 2e-8: a step of rows that are read one by one
  double warp_four;     // 2e-8: four of k of a lone warp
  double wave;          // 1e-6: until the next blocks multiply where others have ended
  double stored;        // 2e-8: each of a thread's columns that isn't stored by fours
  double sum;           // 3e-6: to add up pieces of k apart
  double bandwidth;     // 0.5: share
};

struct TinyModel {
  double launch;         // 2e-6
  double step;           // 5e-7: of a block
  double element;        // 5e-7: more, if it reads element by element
  double read_quad;      // 20: cycles of a warp, to read and deposit four elements at once
  double read_element;   // 50: one by one
  double store_quad;     // 10: to store four
  double store_element;  // 50: one by one
  double ffma;           // 2: an FFMA with its operands
  double bandwidth;      // 0.5: share
};

struct LargeModel {
  double launch;          // 2.5e-6
  double ffma;            // 0.87: share, between a tile's begin and its end
  double tile;            // 4e-6: to begin, and to store
  double elements;        // 1.3e-5: more, if elements are stored one by one
  double exchange;        // 2e-6: the same in clusters, whose lanes exchange their sums
  double cluster;         // 1e-6: each block of a cluster behind the first
  double share;           // 1.4e-5: to share tiles
  double part;            // 1.5e-6: each part of a shared one
  double sum;             // 4e-6: to add up slices: a launch more
  double copy;            // 2e-6: of an operand that no tensor map can describe
  double copy_bandwidth;  // 0.7
};

struct SplitModel {          // of tiles of 128 x 128
  double launch;             // 2e-6: of the convert kernel and the product, with nothing to do
  double step;               // 2e-7: of k of a tile, for each of the 16-bit products
  double tile;               // 1e-6: to fill the pipeline, and to store
  double half_step;          // 0.5: factor of tiles of half the size
  double cluster;            // 1e-6: to add up the parts of a cluster, for each block but one
  double share;              // 3e-6: to share tiles that are left over
  double part;               // 5e-7: each block that shares one
  double sum;                // 3e-6: to add up slices of k: one launch more
  double sum_moves;          // 2: how often a slice's sums are moved
  double convert;            // 0.5: share of the bandwidth that the convert kernel reaches
  double convert_across;     // 1: factor of that kernel, for what doesn't lie along k
  double convert_unaligned;  // 1: factor of that kernel, of elements that are read one by one
};

struct SplitStreamedModel {  // of tiles of 128 x 64
  double launch;             // 2e-6
  double other_launch;       // 2e-6: of the convert kernel for B, or of what adds up slices
  double step;               // 5e-7
  double split_b;            // 1.5: factor of steps, where the kernel splits B
  double tile;               // 2e-6
  double cluster;            // 2e-6: to add up the parts of a cluster
  double share;              // 3e-6: to share tiles that are left over
  double part;               // 5e-7: each block that shares one
  double sum_moves;          // 2: how often a slice's sums are moved
  double convert;            // 0.5: share of the bandwidth that the convert kernel reaches for B
  double unaligned;          // 2: factor of steps, of elements that are read one by one
  double bandwidth;          // 0.8: share
};

struct SplitTallModel {
  double fixed;       // 2e-6
  double fill;        // 3e-7: until B is split, of a warp's 8 columns
  double fill_step;   // 2e-7: more for each step of k
  double tile;        // 2e-8: of an SM
  double step;        // 1e-8: a step of k of it
  double group;       // 5e-9: 8 columns of it
  double group_step;  // 5e-9: a step of those
  double last_group;  // 2e-7: the same of a warp's last tile, which no other one hides
  double unaligned;   // 1e-8: a step that isn't read 16 bytes at a time
  double added;       // 1e-7: a group where C is read
  double stored;      // 2e-8: a group that isn't stored by fours
  double bandwidth;   // 0.5: share
};

struct UnsplitModel {  // of tiles of 256 x 128
  double launch;       // 4e-6: of the product and of the kernel behind it
  double step;         // 8e-7: 64 of k of a tile
  double tile;         // 2e-6: to fill the pipeline, and to store
  double half_step;    // 0.6: factor of steps of tiles of half the size
  double half_tile;    // 0.6: and of what is done once
  double long_step;    // 8e-7: of a tile whose sums stay in the tensor cores for longer windows
  double half_long;    // 0.6: factor of these, of tiles of half the size
  double cluster;      // 1e-6: to add up the parts of a cluster, for each block but one
  double share;        // 5e-6: to share tiles that are left over
  double part;         // 5e-7: each block that shares one
  double bandwidth;    // 0.7: share
  double searched;     // 7e-11: to look through a byte of a stage for subnormal elements
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
  SplitTallModel split_tall;
  UnsplitModel unsplit;
};

// The time of two things that take place together. Where they take about as long, neither hides the other one wholly.
inline double overlapped(double a, double b) { return std::cbrt(a * a * a + b * b * b); }

// Those of this process: the H200's, unless set_models() has changed them, which only a fit does.
const Models& models();

void set_models(const Models& models);

}  // namespace sgemm
