#include <terrace/offload/watch/decision_log.h>

#include <fmt/format.h>

#include <array>

#include <terrace/base/error.h>

namespace terrace {
namespace {

std::string words(const Decision& decision) {
  if (decision.kind == DecisionKind::update) return "the update";
  if (decision.kind == DecisionKind::use) return fmt::format("the use \"{}\"", decision.operation);
  return fmt::format("{} {}", name_of(decision.kind), decision.number);
}

}  // namespace

std::string_view name_of(DecisionKind kind) {
  constexpr std::array<std::string_view, 11> kNames = {"step",  "evaluation", "update", "use",
                                                       "fetch", "ahead",      "evict",  "bypass",
                                                       "stale", "gradient",   "landed"};
  return kNames[static_cast<size_t>(kind)];
}

void Decisions::made(const Decision& decision) {
  if (const Decision* prescribed = this->prescribed()) {
    if (*prescribed != decision)
      refuse(fmt::format("it has {}, and this run comes to {}", words(*prescribed), words(decision)));
    replay_->advance();
  }
  if (log_ != nullptr) log_->add(decision);
}

const Decision* Decisions::prescribed() {
  if (replay_ == nullptr) return nullptr;
  if (const Decision* next = replay_->next()) return next;
  user_log_.info(fmt::format("{}: the decisions end here; the run goes on with its own", replay_->place()));
  replay_ = nullptr;
  return nullptr;
}

void Decisions::refuse(const std::string& reason) const {
  throw Error(ErrorKind::config, {"cannot replay the decisions", replay_->place(), reason,
                                  "replay them with the model, the configuration and the budgets of the run "
                                  "that wrote them"});
}

}  // namespace terrace
