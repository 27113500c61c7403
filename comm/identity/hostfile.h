// Hostfile: which hosts a run may use, and how many ranks each of them takes, in the form that DeepSpeed and
// Open MPI read, and DeepSpeed's filters of hosts and slots. Nothing here asks a host whether it is there.
//
// A line of a hostfile is "NAME slots=N", where blanks or tabs stand between the two. Empty lines count for
// nothing, nor does what follows "#". A name is one of DNS, an alias of ssh, or an address of IPv4; N is from
// 1 to 4096.
//
// All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// A host with the slots that are used on it, ascending and at least one. Slot i is the host's i-th place for
// a rank, counted from 0; where ranks have GPUs, it is the i-th GPU.
struct HostSlots {
  std::string host;
  std::vector<uint32_t> slots = {};

  bool operator==(const HostSlots&) const = default;
};

// At most one of the two is given. Each is a list "HOST[:SLOT[,SLOT...]][@HOST...]"; a host without slots
// stands for all of its slots, and one that is named twice for all that is named.
struct HostFilter {
  std::string include = {};  // these alone are used
  std::string exclude = {};  // all others are used
};

// The hosts of a hostfile's text in the order of its lines, each with all of its slots. `file` is what
// messages call it. Throws Error(config) with the file and the line: a line that is none, a bad number, a
// host that comes again; and with the file alone where no host is in it.
std::vector<HostSlots> parse_hostfile(std::string_view text, std::string_view file);

// The same of a file. Throws Error(config) too, where it cannot be read: a missing file is never taken for an
// empty one.
std::vector<HostSlots> read_hostfile(const std::filesystem::path& path);

// The least of a hostfile that a run shall use.
struct HostLimits {
  std::optional<uint32_t> hosts = {};          // the first ones
  std::optional<uint32_t> slots_of_host = {};  // the first ones of each of these hosts
};

// The first hosts and slots of `hosts`. Throws Error(config) where there are not as many.
std::vector<HostSlots> limit_slots(const std::vector<HostSlots>& hosts, const HostLimits& limits);

// What the filter leaves of `hosts`, whose names differ, in their order; all where it is empty. Throws
// Error(config) where both sides are given, the list has another form, it names a host or a slot that is not
// in `hosts`, or nothing is left.
std::vector<HostSlots> choose_slots(const std::vector<HostSlots>& hosts, const HostFilter& filter);

}  // namespace terrace
