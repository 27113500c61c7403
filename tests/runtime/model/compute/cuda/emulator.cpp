#include "emulator.h"

#include <ucontext.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace terrace::emulator {
namespace {

// Enough for the frames of a kernel under the address sanitizer; only pages that are used exist.
constexpr size_t kStackBytes = 256 * 1024;

enum class State : uint8_t { ready, at_block_barrier, at_warp_barrier, done };

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// A thread of the block: it runs one block after the other.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<void, Free> stack;
  void* sanitizer_stack = nullptr;
  State state = State::done;
  unsigned shuffles = 0;  // whose parity says which of the two slots this one uses
  uint64_t given[2] = {0, 0};
};

struct SharedPiece {
  const void* place;
  size_t bytes;
  std::unique_ptr<void, Free> memory;
};

struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<SharedPiece> shared;
  ucontext_t scheduler;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  const FunctionRef<void()>* thread = nullptr;
  unsigned threads = 0;
  unsigned current = 0;
  Order order = Order::ascending;
};

Machine& machine() {
  static Machine the_machine;
  return the_machine;
}

void arrived_in_fiber(void* sanitizer_stack) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_stack, &machine().scheduler_stack,
                                  &machine().scheduler_stack_bytes);
#else
  static_cast<void>(sanitizer_stack);
#endif
}

// Back to the scheduler, until it lets this fiber run on.
void leave(State state) {
  Machine& m = machine();
  Fiber& fiber = *m.fibers[m.current];
  fiber.state = state;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber.sanitizer_stack, m.scheduler_stack, m.scheduler_stack_bytes);
#endif
  swapcontext(&fiber.context, &m.scheduler);
  arrived_in_fiber(fiber.sanitizer_stack);
}

void fiber_main() {
  arrived_in_fiber(nullptr);
  for (;;) {
    (*machine().thread)();
    leave(State::done);
  }
}

void enter(unsigned index) {
  Machine& m = machine();
  Fiber& fiber = *m.fibers[index];
  m.current = index;
  threadIdx.x = index;
#if defined(__SANITIZE_ADDRESS__)
  void* sanitizer_stack = nullptr;
  __sanitizer_start_switch_fiber(&sanitizer_stack, fiber.stack.get(), kStackBytes);
#endif
  swapcontext(&m.scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_stack, nullptr, nullptr);
#endif
}

void make_fibers(unsigned threads) {
  Machine& m = machine();
  while (m.fibers.size() < threads) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack.reset(std::malloc(kStackBytes));
    TERRACE_ASSERT(fiber->stack != nullptr && getcontext(&fiber->context) == 0, "no memory for a fiber");
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
    m.fibers.push_back(std::move(fiber));
  }
}

// Lets go who waits with all others at one barrier; false when the block is done.
bool release_barriers() {
  Machine& m = machine();
  const auto all = [&](unsigned first, unsigned end, State state) {
    for (unsigned i = first; i < end; ++i) {
      if (m.fibers[i]->state != state) return false;
    }
    return true;
  };
  const auto release = [&](unsigned first, unsigned end) {
    for (unsigned i = first; i < end; ++i) m.fibers[i]->state = State::ready;
  };
  if (all(0, m.threads, State::done)) return false;
  bool released = false;
  if (all(0, m.threads, State::at_block_barrier)) {
    release(0, m.threads);
    released = true;
  }
  for (unsigned first = 0; first < m.threads; first += kWarpThreads) {
    if (all(first, first + kWarpThreads, State::at_warp_barrier)) {
      release(first, first + kWarpThreads);
      released = true;
    }
  }
  TERRACE_ASSERT(released, "the threads of block " + std::to_string(blockIdx.x) +
                               " wait at different barriers, or some have ended");
  return true;
}

void run_block() {
  Machine& m = machine();
  for (SharedPiece& piece : m.shared) std::memset(piece.memory.get(), 0xff, piece.bytes);
  for (unsigned i = 0; i < m.threads; ++i) m.fibers[i]->state = State::ready;
  do {
    for (unsigned i = 0; i < m.threads; ++i) {
      const unsigned index = m.order == Order::ascending ? i : m.threads - 1 - i;
      if (m.fibers[index]->state == State::ready) enter(index);
    }
  } while (release_barriers());
}

}  // namespace

void set_order(Order order) {
  machine().order = order;
}

void run(unsigned blocks, unsigned threads, FunctionRef<void()> thread) {
  TERRACE_ASSERT(threads != 0 && threads <= 1024 && threads % kWarpThreads == 0,
                 "a block of " + std::to_string(threads) + " threads");
  static std::mutex one_kernel;  // streams of several GPUs take turns
  const std::lock_guard turn(one_kernel);
  Machine& m = machine();
  TERRACE_ASSERT(m.thread == nullptr, "a kernel launched another");
  make_fibers(threads);
  m.thread = &thread;
  m.threads = threads;
  m.shared.clear();
  blockDim.x = threads;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) run_block();
  m.thread = nullptr;
}

namespace {

Streams& streams() {
  static Streams the_streams;
  return the_streams;
}

}  // namespace

void set_streams(Streams of_a_driver) {
  streams() = std::move(of_a_driver);
}

void launch(void* stream, unsigned blocks, unsigned threads, std::function<void()> thread) {
  const auto kernel = [blocks, threads, thread = std::move(thread)] { run(blocks, threads, thread); };
  if (!streams()) return kernel();
  streams()(stream, kernel);
}

void sync_block() {
  leave(State::at_block_barrier);
}

void sync_warp(unsigned mask) {
  TERRACE_ASSERT(mask == 0xffffffffu, "only whole warps meet here");
  leave(State::at_warp_barrier);
}

uint64_t exchange(unsigned mask, uint64_t bits, unsigned lane_mask) {
  TERRACE_ASSERT(lane_mask < kWarpThreads, "a lane of another warp");
  Machine& m = machine();
  Fiber& mine = *m.fibers[m.current];
  const unsigned other = m.current ^ lane_mask;
  const unsigned slot = mine.shuffles++ % 2;
  mine.given[slot] = bits;
  sync_warp(mask);
  return m.fibers[other]->given[slot];
}

void* shared_bytes(const void* place, size_t bytes) {
  Machine& m = machine();
  size_t total = bytes;
  for (const SharedPiece& piece : m.shared) {
    if (piece.place == place) return piece.memory.get();
    total += piece.bytes;
  }
  TERRACE_ASSERT(total <= kSharedBytes, "a block of " + std::to_string(total) + " bytes of shared memory");
  m.shared.push_back({place, bytes, std::unique_ptr<void, Free>(std::malloc(bytes))});
  std::memset(m.shared.back().memory.get(), 0xff, bytes);
  return m.shared.back().memory.get();
}

}  // namespace terrace::emulator
