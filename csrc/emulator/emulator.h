// Runs a grid of blocks of threads on the CPU (emulator.cpp); cuda_on_cpu.h gives it CUDA's vocabulary.
#pragma once
#include <functional>

namespace emulator {

struct Index {
  unsigned x, y, z;
};

// The indices and sizes that the running thread sees.
struct Context {
  Index thread, block, block_dim, grid_dim;
};
extern thread_local Context context;

using Body = std::function<void()>;

// Runs `body` once for every thread of every block and returns when all have ended. Throws std::runtime_error when a
// barrier was reached by a part of a block only.
void launch(unsigned blocks, Index threads, const Body& body);

// Returns when every thread of the block has come here.
void barrier();

// With a seed other than 0, a block's threads run in an order drawn anew between any two barriers: a kernel that lacks
// a barrier then gives wrong results. Starts as the environment variable TORCH_SGEMM_EMULATOR_SHUFFLE, or 0.
void set_shuffle(unsigned seed);

}  // namespace emulator
