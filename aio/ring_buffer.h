// RingBuffer: the small buffer through which everything is streamed, block by block.
//
// Its slots are handed out last-in first-out, so that a stream touches no more memory than it has blocks in
// flight and stays in the last-level cache; most of the gain of a registered buffer comes from 2 MiB pages.
// It must never grow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/base/units.h>

namespace terrace::io {

struct RingOptions {
  uint64_t slot_bytes = 768 * kKiB;  // a multiple of 4 KiB
  uint32_t slot_count = 21;          // just under 16 MiB, the size measured best
};

class RingBuffer {
 public:
  // Owns its memory: anonymous, 2 MiB aligned, in 2 MiB pages where the system has them, touched before it
  // returns. Throws Error(capacity) when there is not enough.
  explicit RingBuffer(const RingOptions& options);
  // Uses the caller's `memory`, 4 KiB aligned, which must outlive the ring. It has as many whole slots as
  // fit, at least one.
  RingBuffer(std::span<std::byte> memory, uint64_t slot_bytes);
  ~RingBuffer();  // asserts that every slot has been released
  RingBuffer(const RingBuffer&) = delete;
  RingBuffer& operator=(const RingBuffer&) = delete;

  // Returns the slot released last, whole, or an empty span when all are out. It never blocks on anything
  // slow. Thread-safe.
  std::span<std::byte> acquire();
  // Takes a span that acquire() returned. Thread-safe.
  void release(std::span<std::byte> slot);

  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t slot_count() const { return slot_count_; }
  uint32_t free_count() const;
  // The whole memory of the ring, for registration with an engine.
  std::span<std::byte> memory() const { return memory_; }
  // Why the ring lies in 4 KiB pages; empty when nothing is known to forbid 2 MiB pages, and for memory of
  // the caller's.
  std::string_view huge_page_refusal() const { return huge_page_refusal_; }

 private:
  void fill();

  std::span<std::byte> memory_;
  uint64_t mapped_bytes_ = 0;  // 0: the memory is the caller's
  uint64_t slot_bytes_;
  uint32_t slot_count_;
  std::string_view huge_page_refusal_;
  mutable Mutex mutex_;
  std::vector<uint32_t> free_ TERRACE_GUARDED_BY(mutex_);  // the next one last
  std::vector<bool> is_out_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::io
