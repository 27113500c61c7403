// Where the ranks of a run are: each tells the others its host and its process, once, whatever brought them
// together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/comm/operations/communicator.h>

namespace terrace {

// This process as the others know it. Hosts of one name are one host only where they are one machine.
struct OwnPlace {
  std::string host_name;
  uint64_t machine = 0;  // the same for all processes of a machine that was started once
  uint64_t process = 0;
};
OwnPlace own_place();

// Every rank calls it, and nothing of the control lane is under way. Returns the places by rank; hosts are
// numbered in the order of their first ranks.
std::vector<RankPlace> introduce_ranks(Communicator& ranks, const OwnPlace& mine);

// The hosts of the ranks. Without a value where these are not numbered host by host, or hosts have different
// numbers of ranks.
std::optional<HostLayout> layout_of(std::span<const RankPlace> places);

// "rank 3 of 8 (host b, process 4711)".
std::string text_of(const RankPlace& place, size_t ranks);
// "rank 0", "ranks 0, 2 and 3"; at least one.
std::string text_of_ranks(std::span<const uint32_t> ranks);

}  // namespace terrace
