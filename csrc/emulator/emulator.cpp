#include "emulator.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "../problem/environment.h"
#include "fiber.h"

#if !defined(SGEMM_EMULATOR_UCONTEXT)
asm(R"(
.text
.globl emulator_switch_stacks
.hidden emulator_switch_stacks
.type emulator_switch_stacks, @function
emulator_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch_stacks, .-emulator_switch_stacks
)");
#endif

namespace emulator {

thread_local Context context;

namespace {

std::atomic<unsigned>& shuffle_seed() {
  static std::atomic<unsigned> seed{static_cast<unsigned>(sgemm::whole_number_from_environment(
      "TORCH_SGEMM_EMULATOR_SHUFFLE", 0, 0, std::numeric_limits<unsigned>::max(), "a whole number, 0 for none"))};
  return seed;
}

class Block;
thread_local Block* running;

// Runs the fibers of one block at a time.
class Block {
 public:
  void run(unsigned index, unsigned blocks, Index threads, const Body& body, unsigned seed);
  void barrier() { switch_to(fibers_[current_].stopped, home_); }

 private:
  struct Fiber {
    Stopped stopped;
    Index id;
    bool done;
  };
  static void entry() { running->run_current(); }
  void run_current();

  Stacks stacks_;
  std::vector<Fiber> fibers_;
  std::vector<unsigned> order_;
  Stopped home_;
  const Body* body_ = nullptr;
  unsigned current_ = 0;
};

void Block::run_current() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &home_.stack, &home_.stack_size);
#endif
  (*body_)();
  Fiber& fiber = fibers_[current_];
  fiber.done = true;
  switch_to(fiber.stopped, home_, /*last=*/true);
}

void Block::run(unsigned index, unsigned blocks, Index threads, const Body& body, unsigned seed) {
  const unsigned count = threads.x * threads.y * threads.z;
  if (stacks_.count() < count) stacks_ = Stacks(count);
  fibers_.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    fibers_[i].id = {i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y};
    fibers_[i].done = false;
    prepare(fibers_[i].stopped, stacks_[i], entry);
  }
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0u);
  std::minstd_rand random(seed + index);

  running = this;
  body_ = &body;
  context.block = {index, 0, 0};
  context.block_dim = threads;
  context.grid_dim = {blocks, 1, 1};
  for (unsigned done = 0; done < count;) {
    if (seed) std::shuffle(order_.begin(), order_.end(), random);
    for (unsigned i : order_) {
      current_ = i;
      context.thread = fibers_[i].id;
      switch_to(home_, fibers_[i].stopped);
      done += fibers_[i].done;
    }
    if (done && done < count)
      throw std::runtime_error("emulator: " + std::to_string(done) + " of " + std::to_string(count) +
                               " threads of block " + std::to_string(index) +
                               " ended while the others wait at a barrier");
  }
}

// Pool of idle blocks, which keep their stacks between launches.
std::mutex idle_mutex;
std::vector<std::unique_ptr<Block>> idle;

std::unique_ptr<Block> take_block() {
  std::lock_guard<std::mutex> lock(idle_mutex);
  if (idle.empty()) return std::make_unique<Block>();
  std::unique_ptr<Block> block = std::move(idle.back());
  idle.pop_back();
  return block;
}

void give_block(std::unique_ptr<Block> block) {
  std::lock_guard<std::mutex> lock(idle_mutex);
  idle.push_back(std::move(block));
}

}  // namespace

void set_shuffle(unsigned seed) { shuffle_seed() = seed; }

void barrier() { running->barrier(); }

void launch(unsigned blocks, Index threads, const Body& body) {
  const unsigned seed = shuffle_seed();
  std::atomic<unsigned> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;

  auto work = [&] {
    std::unique_ptr<Block> block = take_block();
    try {
      for (unsigned index; (index = next++) < blocks;) block->run(index, blocks, threads, body, seed);
      give_block(std::move(block));
    } catch (...) {
      std::lock_guard<std::mutex> lock(error_mutex);
      error = std::current_exception();
      next = blocks;
    }
  };
  std::vector<std::thread> workers;
  try {
    for (unsigned i = 1; i < std::min(blocks, std::thread::hardware_concurrency()); ++i) workers.emplace_back(work);
  } catch (const std::system_error&) {
    // The system allows no more threads: the existing ones run all blocks.
  }
  work();
  for (std::thread& worker : workers) worker.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace emulator
