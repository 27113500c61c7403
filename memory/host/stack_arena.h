// StackArena: last-in first-out memory for activations and workspaces inside one permanent allocation.
// Without memory it serves a dry run of the same code, which tells how much the code needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>

namespace terrace {

class StackArena {
 public:
  static constexpr uint64_t kAlignment = 64;

  // Uses `memory`, which must be aligned to kAlignment and outlive the arena.
  explicit StackArena(std::span<std::byte> memory) : base_(memory.data()), capacity_(memory.size()) {}
  // The arena only counts: spans have the right size but a null address and must not be touched.
  static StackArena dry_run() { return StackArena(); }

  bool is_dry_run() const { return base_ == nullptr; }

  // Returns uninitialised memory. Running out is a programmer's mistake: the plan came from a dry run of the
  // same code.
  template <typename T>
  std::span<T> allocate(uint64_t count) {
    const uint64_t begin = used_;
    used_ += round_up(count * sizeof(T), kAlignment);
    if (used_ > peak_) peak_ = used_;
    if (is_dry_run()) return {static_cast<T*>(nullptr), static_cast<size_t>(count)};
    TERRACE_ASSERT(used_ <= capacity_, "the work memory of " + format_bytes(capacity_) +
                                           " is exhausted by a request for " +
                                           format_bytes(count * sizeof(T)));
    return {reinterpret_cast<T*>(base_ + begin), static_cast<size_t>(count)};
  }

  // A Frame frees on destruction everything that was allocated after it was made.
  class Frame {
   public:
    explicit Frame(StackArena& arena) : arena_(arena), used_(arena.used_) {}
    ~Frame() { arena_.used_ = used_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    StackArena& arena_;
    uint64_t used_;
  };

  uint64_t used_bytes() const { return used_; }
  uint64_t peak_bytes() const { return peak_; }

 private:
  StackArena() = default;
  std::byte* base_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t used_ = 0;
  uint64_t peak_ = 0;
};

}  // namespace terrace
