#include "comm/comm_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include <terrace/base/error.h>

namespace terrace {

bool CommFaults::happens(CommFaultKind kind, const CommOperation& operation) const {
  return std::ranges::any_of(faults_, [&](const CommFault& fault) {
    return fault.kind == kind && fault.lane == operation.lane && fault.rank == operation.rank &&
           fault.index == operation.index;
  });
}

std::exception_ptr CommFaults::before(const CommOperation& operation) {
  if (latest_ns_ > 0) {
    std::seed_seq seeds{seed_, uint64_t{operation.rank}, uint64_t{index_of(operation.lane)}, operation.index};
    std::mt19937_64 random(seeds);
    std::this_thread::sleep_for(std::chrono::nanoseconds(random() % latest_ns_));
  }
  if (!happens(CommFaultKind::fail, operation)) return nullptr;
  return std::make_exception_ptr(Error(
      ErrorKind::io,
      {"an injected fault", text_of(operation), "the plan of faults has it", "take it out of the plan"}));
}

void CommFaults::after(const CommOperation& operation) {
  if (!happens(CommFaultKind::corrupt, operation)) return;
  for (uint32_t i = 0; i < operation.group.count; ++i) {
    const uint32_t other = operation.group.rank(i);
    if (other == operation.rank) continue;
    const CommPart part = operation.part_of(other);
    if (part.absent || part.bytes == 0) continue;
    part.memory[0] ^= std::byte{1};
    return;
  }
}

}  // namespace terrace
