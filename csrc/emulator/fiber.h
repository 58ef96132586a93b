// A fiber: a function with its own stack that can stop in the middle and be resumed.
//
// The switch stores the callee-saved registers and exchanges stack pointers. It takes about 5 ns, while ucontext's
// swapcontext makes two system calls for the signal mask. Machines other than x86-64 use ucontext. Each switch is
// reported to AddressSanitizer, which tracks the bounds of the current stack.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#if !defined(__x86_64__) && !defined(SGEMM_EMULATOR_UCONTEXT)
#define SGEMM_EMULATOR_UCONTEXT
#endif
#if defined(SGEMM_EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

// Saved state of a thread of control that has stopped.
struct Stopped {
#if defined(SGEMM_EMULATOR_UCONTEXT)
  ucontext_t registers;
#else
  void* stack_pointer = nullptr;
#endif
  const void* stack = nullptr;  // lowest address; AddressSanitizer needs it
  size_t stack_size = 0;
  void* fake_stack = nullptr;
};

#if !defined(SGEMM_EMULATOR_UCONTEXT)
extern "C" void emulator_switch_stacks(void** save, void* load);
#endif

// Stops the running thread of control as `from` and resumes `to`. `last`: `from` never returns.
inline void switch_to(Stopped& from, Stopped& to, bool last = false) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack, to.stack_size);
#else
  (void)last;
#endif
#if defined(SGEMM_EMULATOR_UCONTEXT)
  swapcontext(&from.registers, &to.registers);
#else
  emulator_switch_stacks(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, &to.stack, &to.stack_size);
#endif
}

// The stacks of a block's fibers, in one mapping; pages are allocated when they are first touched.
class Stacks {
 public:
  // The odd extra keeps equal depths of different stacks out of the same cache set.
  static constexpr size_t kSize = (64 << 10) + 320;

  Stacks() = default;
  explicit Stacks(size_t count) : bytes_(count * kSize) {
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
  }
  Stacks(Stacks&& other) noexcept : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}
  Stacks& operator=(Stacks&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Stacks() {
    if (base_) munmap(base_, bytes_);
  }
  size_t count() const { return bytes_ / kSize; }
  char* operator[](size_t i) const { return static_cast<char*>(base_) + i * kSize; }

 private:
  void* base_ = nullptr;
  size_t bytes_ = 0;
};

// Prepares `fiber` to start with `entry`, which never returns, on the given stack.
inline void prepare(Stopped& fiber, char* stack, void (*entry)()) {
  fiber.stack = stack;
  fiber.stack_size = Stacks::kSize;
  fiber.fake_stack = nullptr;
#if defined(SGEMM_EMULATOR_UCONTEXT)
  getcontext(&fiber.registers);
  fiber.registers.uc_stack.ss_sp = stack;
  fiber.registers.uc_stack.ss_size = Stacks::kSize;
  fiber.registers.uc_link = nullptr;
  makecontext(&fiber.registers, entry, 0);
#else
  // Layout that emulator_switch_stacks leaves on a stack: six registers, the return address, and 8 more bytes, so that
  // the entry has the alignment of a call.
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + Stacks::kSize) & ~uintptr_t{15};
  void** sp = reinterpret_cast<void**>(top) - 2;
  *sp = reinterpret_cast<void*>(entry);
  fiber.stack_pointer = sp - 6;
#endif
}

}  // namespace emulator
