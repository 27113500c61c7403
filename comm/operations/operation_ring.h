// OperationRing: the operations of a lane that wait for their turn, at most `depth` of them, oldest first. It
// allocates nothing after it was made. Not thread-safe: the lock of its owner guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/comm/operations/operation.h>

namespace terrace {

class OperationRing {
 public:
  explicit OperationRing(uint32_t depth) : operations_(depth) {}

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == operations_.size(); }
  void push(const CommOperation& operation) {
    TERRACE_ASSERT(!full(), "who asks waits for room");
    operations_[(first_ + count_++) % operations_.size()] = operation;
  }
  CommOperation pop() {
    TERRACE_ASSERT(!empty(), "there is an operation to take");
    const CommOperation operation = operations_[first_];
    first_ = (first_ + 1) % operations_.size();
    --count_;
    return operation;
  }

 private:
  std::vector<CommOperation> operations_;
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace terrace
