// Runs a grid of blocks of threads on the CPU (emulator.cpp); cuda_on_cpu.h adds CUDA's vocabulary.
#pragma once
#include <functional>

namespace emulator {

struct Index {
  unsigned x, y, z;
};

// Indices and sizes that the running thread reads.
struct Context {
  Index thread, block, block_dim, grid_dim;
};
extern thread_local Context context;

using Body = std::function<void()>;

// Runs `body` once for every thread of every block and returns when all have ended. Throws std::runtime_error if only a
// part of a block reached a barrier.
void launch(unsigned blocks, Index threads, const Body& body);

// Returns when every thread of the block has called it.
void barrier();

// With a nonzero seed, a block's threads run in a new random order between any two barriers, so that a kernel that
// lacks a barrier gives wrong results. The initial value is the environment variable TORCH_SGEMM_EMULATOR_SHUFFLE, or
// 0.
void set_shuffle(unsigned seed);

}  // namespace emulator
