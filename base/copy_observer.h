// CopyObserver: hears of a copy, or of an operation of ranks, when it is over. It must never decide anything
// about them.
#pragma once

#include <cstdint>

namespace terrace {

struct CopyNote;

// The thread that moves the bytes calls these functions.
class CopyObserver {
 public:
  virtual uint64_t now_ns() const noexcept = 0;
  // The bytes have arrived. A copy began at `begun_ns`, when the one before it in the queue was over; an
  // operation of ranks began when it came to its turn on this one.
  virtual void copied(const CopyNote& note, uint64_t bytes, uint64_t begun_ns) noexcept = 0;

 protected:
  ~CopyObserver() = default;
};

// CopyNote: goes with whatever moves bytes over a link. The observer gives `tag` and `id` their meaning.
struct CopyNote {
  CopyObserver* observer = nullptr;  // null: the copy is not reported, and no clock is read for it
  uint64_t tag = 0;
  uint64_t id = 0;
};

}  // namespace terrace
