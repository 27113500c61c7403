// CommOperation: one rank's side of something that all ranks do together, as a back end carries it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include <terrace/base/event.h>
#include <terrace/comm/operations/communicator.h>

namespace terrace {

class CommHook;

enum class CommKind : uint8_t { all_gather, exchange, ballot };

struct CommOperation {
  CommKind kind = CommKind::ballot;
  Lane lane = Lane::control;
  uint32_t rank = 0;
  uint64_t index = 0;    // in its lane
  RankGroup group = {};  // the ranks that take part
  CommNote note = {};
  const Event* after = nullptr;
  Event* done = nullptr;
  // all_gather, ballot; `whole` is empty where the memory is that of another process
  std::span<std::byte> whole = {};
  uint64_t part_bytes = 0;
  // exchange
  std::span<const CommPart> to = {};
  std::span<CommPart> from = {};

  // What a failed `after` of this rank failed with, or else what `hook`, which may be null, has it fail with;
  // null where the rank can take part. `after` is done.
  std::exception_ptr failure_before(CommHook* hook) const;
  // The time, where the operation is recorded; else 0, and no clock is read.
  uint64_t now_ns() const;
  // What this rank has for `other`, and where the bytes of `other` go.
  CommPart part_for(uint32_t other) const;
  CommPart part_of(uint32_t other) const;
};

// "all-gather 3 of lane gather (parameters, chunk 17, after 841 decisions)".
std::string text_of(const CommOperation& operation);

// Why `other`, which another rank has asked for, is not the same operation as `mine`; null where it is.
std::exception_ptr difference(const CommOperation& mine, const CommOperation& other);

// What a failure says; "it failed" where it says nothing.
std::string words_of_failure(const std::exception_ptr& failure);

// A rank leaves the run: the failure of everything that it has a part in.
std::exception_ptr left_run(uint32_t rank, std::string why);

// The failure of an operation because of what failed on `rank`.
std::exception_ptr failed_there(const CommOperation& mine, uint32_t rank, const std::exception_ptr& failure);

// One rank's side of an operation as it meets the others; `failure` is why the rank cannot take part, or
// null.
struct PostedOperation {
  CommOperation operation;
  std::exception_ptr failure;
};

// CommVerdict: whether an operation fails, as every rank finds that knows what all have posted. A difference
// weighs more than a failure, and of two failures that of the lower rank counts.
class CommVerdict {
 public:
  CommVerdict() = default;
  // `posted` is in the order of ranks.
  explicit CommVerdict(std::span<const PostedOperation> posted);

  // Why the operation fails on the rank of `mine`; null where it does not.
  std::exception_ptr failure_of(const CommOperation& mine) const;

 private:
  uint32_t failed_rank_ = 0;
  std::exception_ptr failure_;
  std::exception_ptr difference_;
};

// CommHook: goes wrong on purpose, for tests. Called on the thread that carries the operation out.
class CommHook {
 public:
  virtual ~CommHook() = default;
  // Before the rank meets the others. Returns the failure that the operation shall have, or null.
  virtual std::exception_ptr before(const CommOperation& operation) = 0;
  // When the bytes are there, and before anybody is told.
  virtual void after(const CommOperation& operation) = 0;
};

}  // namespace terrace
