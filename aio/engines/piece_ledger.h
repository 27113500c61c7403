// PieceLedger: the pieces that a transport has handed to the kernel and has no answer for, and those that the
// kernel would not take. By it every piece gets exactly one answer, even when the kernel stops serving the
// transport. It must never allocate after its constructor. One thread uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/aio/engines/transport.h>

namespace terrace::io {

class PieceLedger {
 public:
  explicit PieceLedger(uint32_t queue_depth) : in_kernel_(queue_depth) { refused_.reserve(queue_depth); }

  void start(uint32_t id) { in_kernel_[id] = true; }
  void answer(uint32_t id) { in_kernel_[id] = false; }

  // The piece gets this result from take_refused().
  void refuse(uint32_t id, int64_t result) {
    in_kernel_[id] = false;
    refused_.push_back({id, result});
  }
  // Refuses every piece without an answer. The kernel must have let go of their memory.
  void refuse_all(int64_t result) {
    for (uint32_t id = 0; id < in_kernel_.size(); ++id) {
      if (in_kernel_[id]) refuse(id, result);
    }
  }
  size_t take_refused(std::span<PieceResult> results) {
    const size_t count = std::min(results.size(), refused_.size());
    std::copy_n(refused_.end() - static_cast<std::ptrdiff_t>(count), count, results.begin());
    refused_.resize(refused_.size() - count);
    return count;
  }

 private:
  std::vector<bool> in_kernel_;  // by Piece::id
  std::vector<PieceResult> refused_;
};

// Decides how long a failing system call that hands pieces over or waits for them is made again.
class CallPatience {
 public:
  // Returns 0 after a pause: make the call again. Once it has failed too often in a row, returns the errno.
  int failed(int error);
  void succeeded() { failures_ = 0; }

 private:
  uint32_t failures_ = 0;
};

}  // namespace terrace::io
