// CopyObserver: hears of a copy when it is over. It must never decide anything about copies.
#pragma once

#include <cstdint>

namespace terrace {

struct CopyNote;

// The thread that copies calls these functions.
class CopyObserver {
 public:
  virtual uint64_t now_ns() const noexcept = 0;
  // The bytes have arrived. The copy began at `begun_ns`, when the one before it in the queue was over.
  virtual void copied(const CopyNote& note, uint64_t bytes, uint64_t begun_ns) noexcept = 0;

 protected:
  ~CopyObserver() = default;
};

// CopyNote: goes with a copy that moves bytes over a link. The observer gives `tag` and `id` their meaning.
struct CopyNote {
  CopyObserver* observer = nullptr;  // null: the copy is not reported, and no clock is read for it
  uint64_t tag = 0;
  uint64_t id = 0;
};

}  // namespace terrace
