#include "launch/local_ranks.h"
#include "launch/rank_starter.h"

namespace terrace {

AttemptEnd LocalStarter::run(const std::vector<std::string>& arguments, uint32_t restart) {
  LocalRanks ranks(
      {.ranks = ranks_, .arguments = arguments, .log_folder = log_folder_, .appends_logs = restart > 0},
      console_);
  const int status = ranks.wait();
  deaths_ = ranks.deaths();
  return {.status = status,
          .was_stopped = ranks.was_stopped(),
          .may_have_lost = deaths_ > 0,
          .has_kept = ranks.has_kept()};
}

bool LocalStarter::leave_out_lost() {
  ranks_ -= deaths_;
  return deaths_ > 0;
}

}  // namespace terrace
