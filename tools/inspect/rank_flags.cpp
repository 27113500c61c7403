#include "inspect/rank_flags.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string_view>

#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr const char* kRanksGroup = "The plan";

struct Unit {
  std::string_view name;
  double scale;
};
constexpr double kHour = 3600, kDay = 24 * kHour;
constexpr double kLongest = 10000 * 365 * kDay;
constexpr std::array kTimes = {Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1},
                               Unit{"min", 60},  Unit{"h", kHour}, Unit{"d", kDay},  Unit{"y", 365 * kDay}};

// A number with a unit; negative where it is none.
template <size_t N>
double parse_amount(const std::string& text, const std::array<Unit, N>& units) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || !std::isfinite(number)) return -1;
  for (const Unit& unit : units) {
    if (std::string_view(rest, static_cast<size_t>(end - rest)) == unit.name) return number * unit.scale;
  }
  return -1;
}

// 0 where it is not given.
double seconds_of(const char* flag, const std::string& text, bool may_be_none, const char* example) {
  if (text.empty()) return 0;
  const double seconds = parse_amount(text, kTimes);
  if (!(seconds >= 0) || seconds > kLongest)
    refuse(fmt::format("{} {}", flag, text),
           seconds > 0 ? "it is longer than ten thousand years" : "it is no time",
           fmt::format("give it in ns, us, ms, s, min, h, d or y, for example {}", example));
  if (seconds == 0 && !may_be_none)
    refuse(fmt::format("{} {}", flag, text), "no time is too little",
           fmt::format("leave it out, or give more, for example {}", example));
  return seconds;
}

double bytes_of_a_second(const char* flag, const std::string& text) {
  if (text.ends_with("Gb") || text.ends_with("Mb"))  // sizes are else taken in any case
    refuse(fmt::format("{} {}", flag, text), "it may be bits or bytes",
           "give the bytes of a second, an eighth of the bits, for example 25GB");
  const auto bytes = static_cast<double>(parse_bytes(text, flag));
  if (bytes == 0)
    refuse(fmt::format("{} {}", flag, text), "at this rate nothing arrives",
           "give the bytes of a second, for example 25GB");
  return bytes;
}

struct GivenFlag {
  const char* name;
  const std::string& text;  // empty where it is not given
};

// The first one that is given; null where none is.
const char* first_given(std::initializer_list<GivenFlag> flags) {
  for (const GivenFlag& flag : flags) {
    if (!flag.text.empty()) return flag.name;
  }
  return nullptr;
}

}  // namespace

void RankFlags::add_to(Command& command) {
  const FlagGroup group(command, kRanksGroup);
  group.count("--ranks-per-host", 1, ranks_per_host_,
              "Of --ranks, how many share a host with its memory and processors (default 1)");
  group.text(
      "--network", "SIZE", network_,
      "Bytes that a host receives from others in a second, while it sends as many; its ranks share them");
  group.text(
      "--network-latency", "TIME", network_latency_,
      "What a message for another host takes a rank beside its bytes, one after the other, for example 5us "
      "(default 0)");
  group.text("--network-delay", "TIME", network_delay_,
             "How long a message is on its way to another host, where many are at once (default 0)");
  group.text(
      "--host-link", "SIZE", host_link_,
      "Bytes that a rank gets from others of its host in a second (default: measured between processes)");
  group.text("--host-link-latency", "TIME", host_link_latency_,
             "What a message for a rank of its host takes beside its bytes (default: measured)");
  group.text("--flops", "RATE", flops_,
             "Multiplications and additions of a rank in a second, for example 300T (default: operations are "
             "measured)");
  group.text(
      "--jitter", "PERCENT", jitter_,
      "By how much the times of ranks differ, as a standard deviation: says what waiting for the slowest "
      "takes");
  group.text("--mtbf", "TIME", mtbf_,
             "Mean time between failures of a rank, for example 5y: says how often to commit");
  group.text(
      "--commit-time", "TIME", commit_time_,
      "How long training waits for a commit, for --mtbf (default: its bytes at the rate of the drives)");
  group.text("--restart-time", "TIME", restart_time_,
             "From a failure until training goes on, for --mtbf (default: as long as a commit)");
}

void RankFlags::require_values() const {
  flops();
  jitter();
  mtbf_seconds();
  commit_seconds();
  restart_seconds();
}

void RankFlags::require_sense(uint32_t ranks, bool has_times) const {
  if (ranks_per_host_ > ranks)
    refuse(fmt::format("--ranks-per-host {}", ranks_per_host_),
           fmt::format("the run has {} rank{}", ranks, ranks == 1 ? "" : "s"),
           "give a greater number of --ranks");
  const char* const network = first_given({{"--network", network_},
                                           {"--network-latency", network_latency_},
                                           {"--network-delay", network_delay_}});
  if (ranks == ranks_per_host_ && network != nullptr)
    refuse(network, "all ranks are on one host",
           "leave it out, or say with --ranks-per-host that there are several hosts");
  if (ranks_per_host_ == 1 && !(host_link_.empty() && host_link_latency_.empty()))
    refuse(host_link_.empty() ? "--host-link-latency" : "--host-link", "no two ranks share a host",
           "leave it out, or say with --ranks-per-host that there are more on a host");
  if (mtbf_.empty() && !(commit_time_.empty() && restart_time_.empty()))
    refuse(commit_time_.empty() ? "--restart-time" : "--commit-time", "nothing is said to fail",
           "leave it out, or give --mtbf as well");
  const char* const timed = first_given({{"--jitter", jitter_}, {"--mtbf", mtbf_}, {"--flops", flops_}});
  if (!has_times && timed != nullptr)
    refuse(timed, "--no-time leaves all times out", "leave one of the two out");
}

void RankFlags::take_links(MachineRates& rates) const {
  if (!network_.empty()) rates.network_bytes = bytes_of_a_second("--network", network_) / ranks_per_host_;
  rates.network_seconds = seconds_of("--network-latency", network_latency_, true, "5us");
  rates.network_delay = seconds_of("--network-delay", network_delay_, true, "1ms");
  rates.given_ranks = !(host_link_.empty() && host_link_latency_.empty());
  if (!host_link_.empty()) rates.rank_bytes = bytes_of_a_second("--host-link", host_link_);
  if (!host_link_latency_.empty())
    rates.rank_seconds = seconds_of("--host-link-latency", host_link_latency_, true, "1us");
}

double RankFlags::flops() const {
  constexpr std::array kRates = {Unit{"G", 1e9}, Unit{"T", 1e12}, Unit{"P", 1e15}};
  if (flops_.empty()) return 0;
  const double rate = parse_amount(flops_, kRates);
  if (!(rate > 0) || !std::isfinite(rate))
    refuse("--flops " + flops_, "it is no rate", "give it in G, T or P, for example 300T");
  return rate;
}

double RankFlags::jitter() const {
  if (jitter_.empty()) return 0;
  const double part = parse_amount(jitter_, std::array{Unit{"%", 0.01}});
  if (!(part > 0 && part <= 1))
    refuse("--jitter " + jitter_, "it is no part of a time",
           "give it in percent, above 0 and at most 100, for example 2%");
  return part;
}

double RankFlags::mtbf_seconds() const {
  return seconds_of("--mtbf", mtbf_, false, "5y");
}

double RankFlags::commit_seconds() const {
  return seconds_of("--commit-time", commit_time_, false, "30s");
}

double RankFlags::restart_seconds() const {
  return restart_time_.empty() ? -1 : seconds_of("--restart-time", restart_time_, true, "5min");
}

}  // namespace terrace
