#include "launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/error.h>

#include "command_line.h"

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

int run_with_restarts(LocalRanksOptions ranks, const RestartRules& rules, Console& console) {
  const bool is_train = ranks.command.front() == "train";
  const std::vector<std::string> later =
      is_train && rules.restarts > 0 ? going_on(ranks.command) : ranks.command;
  // Until the run has kept a state, what --fresh gives up may still be there, and is not to be gone on from.
  bool goes_on = is_train && std::ranges::find(ranks.command, "--fresh") == ranks.command.end();
  for (uint32_t restart = 0;; ++restart) {
    LocalRanks run(ranks, console);
    const int status = run.wait();
    goes_on |= run.has_kept();
    const bool can_go_on = run.deaths() > 0 || (!is_train && status != kDone && run.has_kept());
    if (!can_go_on || run.was_stopped() || rules.restarts == 0) return status;
    if (restart == rules.restarts) {
      console.warning(fmt::format("the run ends: it has been started again {} times (--restarts)", restart));
      return status;
    }
    const uint32_t before = ranks.ranks, left = before - run.deaths();
    if (left < rules.min_ranks || left == 0) {
      console.warning(fmt::format("the run ends: {} of {} ranks are left, and {} are needed (--min-ranks)",
                                  left, before, rules.min_ranks));
      return status;
    }
    const std::string how = goes_on ? "go on from what the run has kept"
                                    : fmt::format("begin again{}, since the run has kept nothing yet",
                                                  is_train ? " (--fresh)" : "");
    console.warning(
        fmt::format("restart {} of {}: {} of {} ranks {}", restart + 1, rules.restarts, left, before, how));
    ranks.ranks = left;
    ranks.appends_logs = true;
    if (goes_on) ranks.command = later;
  }
}

}  // namespace terrace
