// ThreadScratch: equal parts of scratch memory, one for each compute thread. They are taken from an arena
// until its frame ends.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/optimizer_cpu/products/products.h>

namespace terrace {

class ThreadScratch {
 public:
  ThreadScratch(StackArena& arena, const Workers& workers, uint64_t floats_per_thread)
      : workers_(workers),
        stride_(round_up(floats_per_thread, StackArena::kAlignment / sizeof(float))),
        floats_(arena.allocate<float>(stride_ * workers.thread_count())) {}

  // The part of the calling worker. Not for dry runs.
  float* mine() const { return floats_.data() + workers_.current_thread_index() * stride_; }
  // All parts, as products take them.
  operator ProductScratch() const { return {floats_.data(), stride_}; }

 private:
  const Workers& workers_;
  uint64_t stride_;
  std::span<float> floats_;
};

}  // namespace terrace
