// What the laws about kept states compare: the state of every step of a training that nothing happens to, and
// what is left on nvme of one to which something did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "laws/factors.h"
#include "support/sanitized.h"

namespace terrace::laws {

// A covering array of pairs whose combinations all keep commits: states on nvme, committed now and then. A
// model with frozen parts keeps them only where its parameters are on nvme as well.
std::vector<Combination> covering_array_with_commits(std::vector<OnlyLevels> only);

// A list of combinations is divided into so many parts, a test for each: with a test for each combination,
// every process would have to make all lists to know its tests.
inline constexpr size_t kParts = testing::kSanitized ? 4 : 12;
// The indices of a part in a list of `size` of which each `every`-th is looked at, or all of them where the
// environment has TERRACE_WHOLE_LAWS.
std::vector<size_t> part_of_list(size_t part, size_t size, size_t every = 1);

// Compares as fast as memcmp() does in a build that is not optimised, too.
bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b);

struct StatesByStep {
  std::vector<std::vector<std::byte>> states;  // [0] is the one before the first step
  uint64_t record_bytes = 0;                   // at the beginning of each
};
// With one rank: their number changes no bit.
StatesByStep states_by_step(Combination combination, uint64_t steps);

// The commit below `folder`, of all ranks, is that of the step `durable` or of a later one and leads on, with
// a commit under way, to the last of `states`; there is none only where `durable` is 0. Corrupt data may be
// refused instead where `may_be_corrupt`. Returns whether there was a commit.
bool expect_gone_on_from(const Combination& combination, const std::filesystem::path& folder,
                         const StatesByStep& expected, uint64_t durable, bool may_be_corrupt);

}  // namespace terrace::laws
