#include "emulator.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>

#include "fiber.h"

namespace terrace::emulator {
namespace {

enum class State : uint8_t { ready, at_block_barrier, at_warp_barrier, done };

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// A thread of the block: it runs one block after the other.
struct Thread {
  explicit Thread(void (*body)()) : fiber(body) {}

  Fiber fiber;
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
  std::vector<std::unique_ptr<Thread>> all_threads;
  std::vector<SharedPiece> shared;
  const FunctionRef<void()>* thread = nullptr;
  unsigned threads = 0;
  unsigned current = 0;
  Order order = Order::ascending;
};

Machine& machine() {
  static Machine the_machine;
  return the_machine;
}

// Back to the scheduler, until it lets this thread run on.
void leave(State state) {
  Machine& m = machine();
  Thread& thread = *m.all_threads[m.current];
  thread.state = state;
  thread.fiber.leave();
}

void thread_main() {
  for (;;) {
    (*machine().thread)();
    leave(State::done);
  }
}

// Where wider registers are in use, instructions of SSE beside the one of fmaf() are slow on Intel's
// processors, by ten times and more.
void free_wide_registers() {
#if defined(__x86_64__)
  if (kHasFma) asm volatile("vzeroupper");
#endif
}

void enter(unsigned index) {
  Machine& m = machine();
  free_wide_registers();
  m.current = index;
  threadIdx.x = index;
  m.all_threads[index]->fiber.enter();
}

void make_threads(unsigned threads) {
  Machine& m = machine();
  while (m.all_threads.size() < threads) m.all_threads.push_back(std::make_unique<Thread>(thread_main));
}

// Lets go who waits with all others at one barrier; false when the block is done.
bool release_barriers() {
  Machine& m = machine();
  const auto all = [&](unsigned first, unsigned end, State state) {
    for (unsigned i = first; i < end; ++i) {
      if (m.all_threads[i]->state != state) return false;
    }
    return true;
  };
  const auto release = [&](unsigned first, unsigned end) {
    for (unsigned i = first; i < end; ++i) m.all_threads[i]->state = State::ready;
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
  for (unsigned i = 0; i < m.threads; ++i) m.all_threads[i]->state = State::ready;
  do {
    for (unsigned i = 0; i < m.threads; ++i) {
      const unsigned index = m.order == Order::ascending ? i : m.threads - 1 - i;
      if (m.all_threads[index]->state == State::ready) enter(index);
    }
  } while (release_barriers());
}

bool has_fma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

}  // namespace

const bool kHasFma = has_fma();

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
  make_threads(threads);
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
  Thread& mine = *m.all_threads[m.current];
  const unsigned other = m.current ^ lane_mask;
  const unsigned slot = mine.shuffles++ % 2;
  mine.given[slot] = bits;
  sync_warp(mask);
  return m.all_threads[other]->given[slot];
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
