#include <terrace/comm/identity/hostfile.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/text/text_file.h>

namespace terrace {
namespace {

// More than any host has processors or GPUs, and few enough to be listed one by one.
constexpr uint32_t kMostSlots = 4096;
constexpr size_t kLargestFileBytes = 4 * 1024 * 1024;
constexpr std::string_view kBlanks = " \t\r\v\f";
constexpr std::string_view kSlots = "slots=";

// Messages quote no more of a file that may be anything.
std::string_view excerpt(std::string_view text) {
  return text.substr(0, 80);
}

// Filters give ":", "," and "@" a meaning of their own, and programs take a name that begins with "-" for a
// flag.
bool is_host_name(std::string_view name) {
  return !name.empty() && name.front() != '-' && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

// Cuts off and returns what comes before the separator, or all.
std::string_view cut_until(std::string_view& rest, char separator) {
  const std::string_view part = rest.substr(0, rest.find(separator));
  rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  return part;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;
       at = line.find_first_not_of(kBlanks, at)) {
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

Error unreadable_hostfile(std::string subject, std::string reason) {
  return Error(
      ErrorKind::config,
      {"cannot use the hostfile", std::move(subject), std::move(reason),
       fmt::format(
           "write a line for each host: its name, a blank, and \"slots=\" with the number of ranks it "
           "may take, from 1 to {}",
           kMostSlots)});
}

// Nothing if no host is in the line. `place` is its file and number.
std::optional<HostSlots> host_of_line(std::string_view line, const std::string& place) {
  const std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
  if (words.empty()) return std::nullopt;
  const std::string_view host = words[0];
  if (!is_host_name(host))
    throw unreadable_hostfile(place, fmt::format("\"{}\" is not the name of a host", excerpt(host)));
  if (words.size() == 1)
    throw unreadable_hostfile(place, fmt::format("host {} has no \"slots=\"", excerpt(host)));
  if (!words[1].starts_with(kSlots))
    throw unreadable_hostfile(place,
                              fmt::format("\"{}\" stands where \"slots=\" is expected", excerpt(words[1])));
  const std::string_view digits = words[1].substr(kSlots.size());
  const std::optional<uint32_t> count = number_of_digits<uint32_t>(digits);
  if (!count || *count == 0 || *count > kMostSlots)
    throw unreadable_hostfile(place, fmt::format("\"{}\" is not a number of slots", excerpt(digits)));
  if (words.size() > 2)
    throw unreadable_hostfile(place, fmt::format("\"{}\" follows the number of slots", excerpt(words[2])));
  HostSlots found{.host = std::string(host), .slots = std::vector<uint32_t>(*count)};
  std::iota(found.slots.begin(), found.slots.end(), 0u);
  return found;
}

Error bad_filter(std::string_view filter, std::string reason, std::string advice) {
  return Error(ErrorKind::config, {"cannot choose hosts and slots", std::string(excerpt(filter)),
                                   std::move(reason), std::move(advice)});
}

Error misspelt_filter(std::string_view filter, std::string reason) {
  return bad_filter(filter, std::move(reason), "write it as host1@host2:0,1");
}

// "0, 1, 2", the first ones where there are many.
template <typename Items>
std::string list_of(const Items& items) {
  constexpr size_t kListed = 16;
  const size_t count = std::min(items.size(), kListed);
  return fmt::format("{}{}",
                     fmt::join(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count), ", "),
                     count < items.size() ? fmt::format(" and {} more", items.size() - count) : "");
}

size_t position_of_host(const std::vector<HostSlots>& hosts, std::string_view name, std::string_view filter) {
  if (name.empty()) throw misspelt_filter(filter, "the name of a host is missing");
  const auto found = std::ranges::find(hosts, name, &HostSlots::host);
  if (found != hosts.end()) return static_cast<size_t>(found - hosts.begin());
  std::vector<std::string_view> names;
  for (const HostSlots& host : hosts) names.push_back(host.host);
  throw bad_filter(filter, fmt::format("there is no host {}", excerpt(name)),
                   fmt::format("the hosts are: {}", list_of(names)));
}

uint32_t slot_of_host(const HostSlots& host, std::string_view text, std::string_view filter) {
  const std::optional<uint32_t> slot = number_of_digits<uint32_t>(text);
  if (!slot) throw misspelt_filter(filter, fmt::format("\"{}\" is not a slot", excerpt(text)));
  if (!std::ranges::binary_search(host.slots, *slot))
    throw bad_filter(filter, fmt::format("host {} has no slot {}", host.host, *slot),
                     fmt::format("its slots are: {}", list_of(host.slots)));
  return *slot;
}

// What a filter names, by the position of the host in `hosts`.
std::vector<std::set<uint32_t>> named_slots(const std::vector<HostSlots>& hosts, std::string_view filter) {
  std::vector<std::set<uint32_t>> named(hosts.size());
  // A separator at the end has nothing behind it, which the cutting would not show.
  if (filter.ends_with('@')) throw misspelt_filter(filter, "the name of a host is missing");
  for (std::string_view rest = filter; !rest.empty();) {
    std::string_view slots = cut_until(rest, '@');
    const bool all = slots.find(':') == std::string_view::npos;
    const size_t at = position_of_host(hosts, cut_until(slots, ':'), filter);
    if (all) named[at].insert(hosts[at].slots.begin(), hosts[at].slots.end());
    if (!all && (slots.empty() || slots.ends_with(',')))
      throw misspelt_filter(filter, fmt::format("a slot of host {} is missing", hosts[at].host));
    while (!slots.empty()) named[at].insert(slot_of_host(hosts[at], cut_until(slots, ','), filter));
  }
  return named;
}

}  // namespace

std::vector<HostSlots> parse_hostfile(std::string_view text, std::string_view file) {
  std::vector<HostSlots> hosts;
  std::map<std::string, uint64_t, std::less<>> lines;  // by host
  uint64_t number = 0;
  while (!text.empty()) {
    const std::string place = fmt::format("{}:{}", file, ++number);
    std::optional<HostSlots> host = host_of_line(cut_until(text, '\n'), place);
    if (!host) continue;
    const auto [first, added] = lines.emplace(host->host, number);
    if (!added)
      throw unreadable_hostfile(place, fmt::format("host {} comes again; line {} has it already",
                                                   excerpt(host->host), first->second));
    hosts.push_back(std::move(*host));
  }
  if (hosts.empty()) throw unreadable_hostfile(std::string(file), "no host is in it");
  return hosts;
}

std::vector<HostSlots> read_hostfile(const std::filesystem::path& path) {
  const std::string text = text_of_file(path, kLargestFileBytes, [&](const Reason& reason) {
    throw Error(ErrorKind::config, {"cannot read the hostfile", path.string(), reason,
                                    "name a file with a line \"HOST slots=NUMBER\" for each host"});
  });
  return parse_hostfile(text, path.string());
}

std::vector<HostSlots> limit_slots(const std::vector<HostSlots>& hosts, const HostLimits& limits) {
  const auto fail = [](std::string what, std::string reason) {
    return Error(ErrorKind::config, {"cannot use as many hosts or slots", std::move(what), std::move(reason),
                                     "ask for fewer, or add them to the hostfile"});
  };
  std::vector<HostSlots> limited = hosts;
  if (limits.hosts.value_or(0) > limited.size())
    throw fail(fmt::format("{} hosts", *limits.hosts), fmt::format("there are {}", limited.size()));
  if (limits.hosts) limited.resize(*limits.hosts);
  for (HostSlots& host : limited) {
    if (!limits.slots_of_host) continue;
    if (*limits.slots_of_host > host.slots.size())
      throw fail(fmt::format("{} slots of each host", *limits.slots_of_host),
                 fmt::format("host {} has {}", host.host, host.slots.size()));
    host.slots.resize(*limits.slots_of_host);
  }
  return limited;
}

std::vector<HostSlots> choose_slots(const std::vector<HostSlots>& hosts, const HostFilter& filter) {
  if (filter.include.empty() && filter.exclude.empty()) return hosts;
  if (!filter.include.empty() && !filter.exclude.empty())
    throw bad_filter(fmt::format("{} and {}", filter.include, filter.exclude),
                     "both include and exclude are given", "give one of them");
  const bool include = !filter.include.empty();
  const std::string& list = include ? filter.include : filter.exclude;
  const std::vector<std::set<uint32_t>> named = named_slots(hosts, list);
  std::vector<HostSlots> chosen;
  for (size_t i = 0; i < hosts.size(); ++i) {
    HostSlots host{.host = hosts[i].host, .slots = {}};
    std::ranges::copy_if(hosts[i].slots, std::back_inserter(host.slots),
                         [&](uint32_t slot) { return named[i].contains(slot) == include; });
    if (!host.slots.empty()) chosen.push_back(std::move(host));
  }
  if (chosen.empty()) throw bad_filter(list, "no slot of any host is left", "exclude fewer hosts or slots");
  return chosen;
}

}  // namespace terrace
