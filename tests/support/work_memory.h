// WorkMemory: a StackArena over memory of its own.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include <terrace/base/assert.h>
#include <terrace/memory/host/stack_arena.h>

namespace terrace::testing {

class WorkMemory {
 public:
  explicit WorkMemory(uint64_t bytes)
      : memory_(static_cast<std::byte*>(
            std::aligned_alloc(StackArena::kAlignment, round_up(bytes, StackArena::kAlignment)))),
        arena_({memory_.get(), bytes}) {
    TERRACE_ASSERT(memory_ != nullptr, "no memory for the test");
  }

  StackArena& arena() { return arena_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  StackArena arena_;
};

}  // namespace terrace::testing
