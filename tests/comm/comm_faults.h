// CommFaults: operations that go wrong on purpose, as a list says, and lanes that are late by seeded amounts.
#pragma once

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <terrace/comm/operations/operation.h>

namespace terrace {

enum class CommFaultKind : uint8_t {
  fail,     // the rank fails, and the operation with it on all ranks
  corrupt,  // the lowest bit of the first byte that the rank received, if any, is flipped
};

struct CommFault {
  CommFaultKind kind = CommFaultKind::fail;
  Lane lane = Lane::gather;
  uint32_t rank = 0;
  uint64_t index = 0;  // of the operation, in its lane
};

// Thread-safe.
class CommFaults final : public CommHook {
 public:
  // Each operation of each rank begins late by up to `latest_ns`, as the seed says.
  CommFaults(std::vector<CommFault> faults, uint64_t latest_ns = 0, uint64_t seed = 0)
      : faults_(std::move(faults)), latest_ns_(latest_ns), seed_(seed) {}

  std::exception_ptr before(const CommOperation& operation) override;
  void after(const CommOperation& operation) override;

 private:
  bool happens(CommFaultKind kind, const CommOperation& operation) const;

  const std::vector<CommFault> faults_;
  const uint64_t latest_ns_;
  const uint64_t seed_;
};

}  // namespace terrace
