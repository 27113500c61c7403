// CommOperation: one rank's side of something that all ranks do together, as a back end carries it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include <terrace/base/event.h>
#include <terrace/comm/communicator.h>

namespace terrace {

enum class CommKind : uint8_t { all_gather, exchange, ballot };

struct CommOperation {
  CommKind kind = CommKind::ballot;
  Lane lane = Lane::control;
  uint32_t rank = 0;
  uint64_t index = 0;  // in its lane
  CommNote note = {};
  const Event* after = nullptr;
  Event* done = nullptr;
  // all_gather, ballot
  std::span<std::byte> whole = {};
  uint64_t part_bytes = 0;
  // exchange
  std::span<const CommPart> to = {};
  std::span<CommPart> from = {};

  // The ranks that have a part in it.
  uint32_t rank_count() const;
  // What this rank has for `other`, and where the bytes of `other` go.
  CommPart part_for(uint32_t other) const;
  CommPart part_of(uint32_t other) const;
};

// "all-gather 3 of lane gather (parameters, chunk 17, after 841 decisions)".
std::string text_of(const CommOperation& operation);

// Why `other`, which another rank has asked for, is not the same operation as `mine`; null where it is.
std::exception_ptr difference(const CommOperation& mine, const CommOperation& other);

// The failure of an operation because of what failed on `rank`.
std::exception_ptr failed_there(const CommOperation& mine, uint32_t rank, const std::exception_ptr& failure);

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
