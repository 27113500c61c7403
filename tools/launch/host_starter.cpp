#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "launch/host_questions.h"
#include "launch/host_ranks.h"
#include "launch/mpirun_command.h"
#include "launch/rank_starter.h"

namespace terrace {
namespace {

// For a host that is busy, but not for ever.
constexpr std::chrono::seconds kToAnswer(10);
// Ranks on a host that is cut off miss the others after ten seconds, and have all ended two seconds later.
constexpr std::chrono::seconds kForRanksCutOff(14);

// What the ranks of a host make in a round, where all hosts have as many; every attempt has the first one's.
uint32_t gradient_group_of(const std::vector<HostSlots>& hosts) {
  const size_t slots = hosts.front().slots.size();
  const bool are_alike =
      std::ranges::all_of(hosts, [&](const HostSlots& h) { return h.slots.size() == slots; });
  return hosts.size() > 1 && are_alike ? static_cast<uint32_t>(slots) : 1;
}

}  // namespace

HostStarter::HostStarter(std::vector<HostSlots> hosts, std::filesystem::path log_folder, Console& console)
    : hosts_(std::move(hosts)),
      log_folder_(std::move(log_folder)),
      new_gradient_group_(gradient_group_of(hosts_)),
      console_(console) {
  require_open_mpi();
}

uint32_t HostStarter::ranks() const {
  size_t count = 0;
  for (const HostSlots& host : hosts_) count += host.slots.size();
  return static_cast<uint32_t>(count);
}

AttemptEnd HostStarter::run(const std::vector<std::string>& arguments, uint32_t restart) {
  // mpirun writes every file anew.
  const bool has_own_folder = !log_folder_.empty() && restart > 0;
  HostRanks ranks(
      {.hosts = hosts_,
       .arguments = arguments,
       .log_folder = has_own_folder ? log_folder_ / fmt::format("restart-{}", restart) : log_folder_,
       .new_gradient_group = new_gradient_group_});
  const int status = ranks.wait();
  run_ = ranks.run();
  has_lost_ = ranks.has_lost();
  is_unheard_ = ranks.is_unheard();
  ends_.clear();
  for (uint32_t r = 0; r < this->ranks(); ++r) ends_.push_back({ranks.has_died(r), ranks.is_over(r)});
  return {.status = status,
          .was_stopped = ranks.was_stopped(),
          .may_have_lost = ranks.may_have_lost(),
          .has_kept = ranks.has_kept()};
}

bool HostStarter::leave_out_lost() {
  const auto asked_at = std::chrono::steady_clock::now();
  const std::vector<bool> free = free_hosts(hosts_, run_, kToAnswer);
  bool may_some_live = false;
  auto end = ends_.begin();
  for (size_t h = 0; h < hosts_.size(); ++h) {
    const auto next = end + static_cast<std::ptrdiff_t>(hosts_[h].slots.size());
    may_some_live |= !take_stock(hosts_[h], {end, next}, free[h]);
    end = next;
  }
  std::erase_if(hosts_, [](const HostSlots& host) { return host.slots.empty(); });
  if (may_some_live) std::this_thread::sleep_until(asked_at + kForRanksCutOff);
  if (!has_lost_ && is_unheard_)
    console_.warning("the run ends: mpirun has ended before any rank came, and every host answers");
  return has_lost_;
}

// Leaves the host the slots that it has left. Returns false where ranks of the last run may still be there.
bool HostStarter::take_stock(HostSlots& host, const std::vector<RankEnd>& ends, bool is_free) {
  if (!is_free) {
    console_.warning(
        fmt::format("host {} does not answer, and is left out with its {} ranks and what only it has kept",
                    host.host, host.slots.size()));
    host.slots.clear();
    has_lost_ = true;
    return std::ranges::all_of(ends, &RankEnd::is_over);
  }
  const auto deaths = std::ranges::count_if(ends, &RankEnd::has_died);
  if (deaths > 0) {
    console_.warning(fmt::format("host {} has lost {} of {} ranks", host.host, deaths, host.slots.size()));
    host.slots.resize(host.slots.size() - static_cast<size_t>(deaths));
  }
  return true;
}

}  // namespace terrace
