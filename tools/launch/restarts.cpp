#include "launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/error.h>

namespace terrace {

std::vector<std::string> going_on(const std::vector<std::string>& arguments) {
  constexpr std::string_view kResume = "--resume";
  std::vector<std::string> words;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--fresh") continue;
    const bool is_joined = word.starts_with("--resume=");
    if (word != kResume && !is_joined) {
      words.push_back(word);
      continue;
    }
    std::string from;
    if (is_joined) {
      from = word.substr(kResume.size() + 1);
    } else if (i + 1 < arguments.size()) {
      from = arguments[++i];
    }
    if (from != "auto" && from != "nvme")
      throw Error(ErrorKind::config,
                  {"cannot launch with --restarts", fmt::format("--resume {}", from),
                   "after a death the run goes on from what it has kept itself, and not from there",
                   "use --resume auto, with --save naming that folder"});
  }
  words.insert(words.end(), {std::string(kResume), "auto"});
  return words;
}

int run_with_restarts(RankStarter& ranks, const std::vector<std::string>& arguments,
                      const RestartRules& rules, Console& console) {
  const std::vector<std::string> later = rules.restarts > 0 ? going_on(arguments) : arguments;
  // Until the run has kept a state, what --fresh gives up may still be there, and is not to be gone on from.
  bool goes_on = std::ranges::find(arguments, "--fresh") == arguments.end();
  for (uint32_t restart = 0;; ++restart) {
    const uint32_t before = ranks.ranks();
    const AttemptEnd end = ranks.run(restart > 0 && goes_on ? later : arguments, restart);
    goes_on |= end.has_kept;
    if (!end.may_have_lost || end.was_stopped || rules.restarts == 0) return end.status;
    if (restart == rules.restarts) {
      console.warning(fmt::format("the run ends: it has been started again {} times (--restarts)", restart));
      return end.status;
    }
    if (!ranks.leave_out_lost()) return end.status;
    const uint32_t left = ranks.ranks();
    if (left < rules.min_ranks || left == 0) {
      console.warning(fmt::format("the run ends: {} of {} ranks are left, and {} are needed (--min-ranks)",
                                  left, before, rules.min_ranks));
      return end.status;
    }
    console.warning(fmt::format("restart {} of {}: {} of {} ranks {}", restart + 1, rules.restarts, left,
                                before,
                                goes_on ? "go on from what the run has kept"
                                        : "begin again (--fresh), since the run has kept nothing yet"));
  }
}

}  // namespace terrace
