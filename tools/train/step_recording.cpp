#include "train/step_recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/units.h>
#include <terrace/comm/agreement/rank_clock.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/runtime/observe/page/picture_json.h>
#include <terrace/runtime/observe/trace/merge_traces.h>

#include "command_line.h"

namespace terrace {
namespace {

constexpr uint64_t kWarmUpSteps = 2;
constexpr uint64_t kDefaultSteps = 3;
// With less memory no step's events have room, and more is a mistake.
constexpr uint64_t kLeastMemory = 64 * kKiB;
constexpr uint64_t kMostMemory = 4 * kGiB;
constexpr uint64_t kDefaultMemory = 32 * kMiB;

StepEventsOptions options_of(const TrainFlags& flags) {
  if (flags.trace_memory.empty()) return {.memory_bytes = kDefaultMemory};
  const uint64_t bytes = parse_bytes(flags.trace_memory, "--trace-memory");
  if (bytes < kLeastMemory || bytes > kMostMemory)
    refuse("--trace-memory " + flags.trace_memory,
           fmt::format("it must be {} to {}", format_bytes(kLeastMemory), format_bytes(kMostMemory)),
           "give for example 64MiB, or leave it out");
  return {.memory_bytes = bytes};
}

}  // namespace

StepRange parse_step_range(const std::string& text, uint64_t steps) {
  const std::string subject = "--trace-steps " + text;
  const size_t dash = text.find('-');
  const std::optional<uint64_t> first = number_of_digits(std::string_view(text).substr(0, dash));
  std::optional<uint64_t> last = first;
  if (dash != std::string::npos)
    last = dash + 1 == text.size() ? steps : number_of_digits(std::string_view(text).substr(dash + 1));
  if (!first || !last || *first == 0 || *last < *first)
    refuse(subject, "it is no range of steps, which count from 1",
           "write --trace-steps 3-5, or 3 for one step");
  if (*first > steps)
    refuse(subject, fmt::format("the run ends with step {}", steps),
           "name steps that it has, or raise --steps");
  return {*first, std::min(*last, steps)};
}

StepRange default_step_range(uint64_t completed, uint64_t steps) {
  const uint64_t remaining = steps - std::min(completed, steps);
  const uint64_t skipped = std::min(kWarmUpSteps, remaining - std::min(remaining, kDefaultSteps));
  const uint64_t first = completed + skipped + 1;
  return {first, std::max(first, std::min(first + kDefaultSteps - 1, steps))};
}

StepRecording::StepRecording(const TrainFlags& flags, Log& log)
    : log_(log),
      steps_(flags.steps),
      trace_(flags.trace),
      has_trace_(!flags.trace.empty()),
      has_page_(!flags.report.empty()) {
  if (!has_trace_ && !flags.trace_steps.empty())
    refuse("--trace-steps", "--trace is not given", "say which file with --trace FILE");
  if (!has_trace_ && !has_page_) {
    if (!flags.trace_memory.empty())
      refuse("--trace-memory", "neither --trace nor --report is given", "say which file with --trace FILE");
    return;
  }
  if (!flags.trace_steps.empty()) wanted_ = parse_step_range(flags.trace_steps, flags.steps);
  events_ = std::make_unique<StepEvents>(clock_, options_of(flags));
}

StepRecording::~StepRecording() = default;

std::filesystem::path StepRecording::part_of(uint32_t rank) const {
  return fmt::format("{}.rank-{}", trace_, rank);
}

// Times of all ranks count from the moment when the first one began its own.
std::unique_ptr<TraceFile> StepRecording::make_file() const {
  if (ranks_ == nullptr) return std::make_unique<TraceFile>(trace_, clock_.now_ns());
  std::error_code missing;
  std::filesystem::remove(part_of(ranks_->rank()), missing);  // of an earlier run: it would be taken for ours
  const FirstClock begun = clock_of_first(*ranks_, clock_);
  TraceRank rank{ranks_->rank(), ranks_->size(), text_of(ranks_->places()[ranks_->rank()], ranks_->size()),
                 begun.error_ns};
  return std::make_unique<TraceFile>(part_of(rank.rank), begun.now_ns, std::move(rank));
}

void StepRecording::begin(Trainer& trainer, StepLog& log, Communicator* ranks) {
  if (events_ == nullptr) return;
  steps_log_ = &log;
  trainer_ = &trainer;
  ranks_ = has_trace_ ? ranks : nullptr;
  joins_parts_ = ranks_ != nullptr && ranks_->rank() == 0;
  const uint64_t completed = completed_ = trainer.completed_steps();
  // The file is made no sooner: from here on a signal ends the run in order, and no partial file is left
  // behind.
  try {
    if (has_trace_) file_ = make_file();
  } catch (const Error& unwritten) {
    give_up(unwritten);
  }
  if (file_ == nullptr) {
    events_->choose_steps(completed + 1, completed + 2);
    taker_.emplace(completed, events_->capacity());
    return;
  }
  const StepRange range = wanted_ ? *wanted_ : default_step_range(completed, steps_);
  events_->choose_steps(range.first, range.last);
  if (has_page_) taker_.emplace(range.first - 1, events_->capacity());
  if (range.last <= completed)
    log_.warning(
        fmt::format("--trace: the run goes on with step {}, and steps {}-{} are behind it: the trace "
                    "will be empty",
                    completed + 1, range.first, range.last));
  log_.info(fmt::format("steps {}-{} are recorded for {}, with {} of memory beside the budgets", range.first,
                        range.last, trace_, format_bytes(events_->memory_bytes())));
}

// Transfers of a step have ended when the next one ends, except commits: one that is still in progress may
// have begun in a recorded step.
void StepRecording::step_done(const StepReport& report) {
  if (events_ == nullptr) return;
  const uint64_t step = report.step;
  take();
  if (taker_) tell(taker_->step_done(step, *events_));
  if (step <= events_->last_step()) return;
  if (file_ != nullptr && !trainer_->offloader().commits().in_progress()) finish_file();
  if (file_ == nullptr) join_parts(false);
  if (!has_trace_) choose_next(step);
}

// A page alone needs pictures of ever rarer steps. The transfers of the last one have ended by now.
void StepRecording::choose_next(uint64_t step) {
  uint64_t next = step + 1;
  while (!is_pictured_step(completed_, next)) ++next;
  events_->choose_steps(next, next);
}

void StepRecording::tell(const std::optional<StepPicture>& picture) {
  if (picture) steps_log_->picture(picture->step, picture_json(*picture));
}

void StepRecording::take() {
  try {
    events_->take([this](const TraceEvent& event) {
      if (taker_) taker_->add(event);
      if (file_ != nullptr) file_->add(*events_, event);
    });
  } catch (const Error& unwritten) {
    give_up(unwritten);
  }
}

// Others may come to the end of their files a few steps later, or on a host with another file system.
void StepRecording::join_parts(bool all_have_ended) {
  if (!joins_parts_) return;
  std::error_code missing;
  std::vector<std::filesystem::path> parts;
  for (uint32_t r = 0; r < ranks_->size(); ++r) parts.push_back(part_of(r));
  while (complete_parts_ < parts.size() && std::filesystem::exists(parts[complete_parts_], missing))
    ++complete_parts_;
  if (complete_parts_ < parts.size() && !all_have_ended) return;
  joins_parts_ = false;
  try {
    merge_traces(parts, trace_);
    for (const std::filesystem::path& part : parts) std::filesystem::remove(part, missing);
    log_.info(fmt::format("the traces of {} ranks are in {}", parts.size(), trace_));
  } catch (const Error& apart) {
    log_.warning(
        fmt::format("the traces of the ranks stay apart, as {}.rank-N: {}", trace_, apart.in(Door::program)));
  }
}

void StepRecording::ended(const RunEnd& end) {
  if (events_ == nullptr) return;
  take();
  if (taker_) tell(taker_->finish(*events_));
  finish_file();
  if (ranks_ == nullptr) return;
  try {
    if (!end.failed) RankVotes(ranks_).any(false);  // all have come here
  } catch (const Error&) {
    // Another rank has failed, and says so.
  }
  join_parts(true);
}

void StepRecording::finish_file() {
  if (file_ == nullptr) return;
  try {
    file_->finish(*events_, "terrace " TERRACE_VERSION ", " + trainer_->model_description());
    const std::string what = fmt::format("{} events of steps {}-{} are in {}", file_->event_count(),
                                         events_->first_step(), events_->last_step(), file_->path().string());
    if (events_->left_out() == 0) {
      if (ranks_ == nullptr) log_.info(what);
    } else {
      log_.warning(
          fmt::format("{}; there was no room for {} more: raise --trace-memory", what, events_->left_out()));
    }
    file_.reset();
  } catch (const Error& unwritten) {
    give_up(unwritten);
  }
}

void StepRecording::give_up(const Error& unwritten) {
  file_.reset();
  log_.warning(unwritten.in(Door::program) + "; training goes on without it");
}

}  // namespace terrace
