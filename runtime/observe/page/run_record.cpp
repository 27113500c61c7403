#include <terrace/runtime/observe/page/run_record.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include <terrace/base/error.h>

namespace terrace {
namespace {

// Reads one member; false if it is missing or of another type.
template <typename T>
bool read(const JsonNode& line, std::string_view key, T& value) {
  const JsonNode* const node = line.find(key);
  return node != nullptr && read_json(*node, value);
}

// Nothing if it is no whole object.
std::optional<JsonNode> object_in(std::string_view line) {
  try {
    JsonNode node = parse_json(line, "");
    if (node.is(JsonNode::Kind::object)) return node;
  } catch (const Error&) {
    // Half a line of a run that was killed.
  }
  return std::nullopt;
}

}  // namespace

std::string_view key_of(RunState state) {
  switch (state) {
    case RunState::starting:
      return "starting";
    case RunState::running:
      return "running";
    case RunState::complete:
      return "complete";
    case RunState::stopped:
      return "stopped";
    case RunState::failed:
      return "failed";
  }
  return "";
}

double PredictedPart::median_seconds() const {
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

struct RunRecord::Event {
  std::string_view name;
  Reading reading;
};

const RunRecord::Event RunRecord::kEvents[] = {
    {"start", &RunRecord::start},
    {"step", &RunRecord::step},
    {"update", &RunRecord::update},
    {"evaluation", &RunRecord::evaluation},
    {"commit", &RunRecord::commit},
    {"epoch", &RunRecord::commit},  // of an earlier Terrace
    {"commits removed", &RunRecord::commits_removed},
    {"checkpoint", &RunRecord::checkpoint},
    {"memory", &RunRecord::memory},
    {"picture", &RunRecord::picture},
    {"warning", &RunRecord::warning},
    {"end", &RunRecord::end},
    {"failed", &RunRecord::failed},
};

void RunRecord::add(std::string_view line) {
  const std::optional<JsonNode> node = object_in(line);
  const JsonNode* const event = node ? node->find("event") : nullptr;
  if (event == nullptr) return;
  const auto* const known = std::ranges::find(kEvents, event->text, &Event::name);
  if (known == std::end(kEvents) || (this->*known->reading)(*node)) return;
  throw Error(ErrorKind::corrupt, {"cannot understand the log of steps", event->text,
                                   "a member of its line is missing or of another type",
                                   "use the program of the version that wrote it"});
}

bool RunRecord::start(const JsonNode& line) {
  *this = RunRecord(series_.room());
  has_begun_ = true;
  if (read_header(line, header_)) return false;
  completed_steps_ = header_.resumed_at_step;
  commit_step_ = header_.commit_step;
  return true;
}

bool RunRecord::step(const JsonNode& line) {
  StepReport report;
  if (read_fields(line, report) || !read_counters(line, report.moved)) return false;
  series_.add(report);
  all_.add(report);
  count_predicted(report);
  completed_steps_ = report.step;
  last_step_ = report;
  state_ = RunState::running;
  return true;
}

void RunRecord::count_predicted(const StepReport& report) {
  if (!header_.prediction) return;
  const PlanPrediction& prediction = *header_.prediction;
  if (report.update_mode != prediction.update_mode) {
    ++predicted_.of_other_modes;
  } else if (all_.count >= prediction.repeats_from_step && !report.skipped) {
    ++predicted_.steps;
    predicted_.moved = predicted_.moved + report.moved;
    if (predicted_.seconds.size() < PredictedPart::kMostTimes)
      predicted_.seconds.push_back(static_cast<double>(report.total_ns - report.keeping_ns) * 1e-9);
  }
}

bool RunRecord::update(const JsonNode& line) {
  const JsonNode* const rest = line.find("rest");
  FinishedUpdate update;
  if (rest == nullptr || !read_counters(*rest, update.moved)) return false;
  const JsonNode* const taken = rest->find("seconds");
  if (taken == nullptr || !read_seconds(*taken, update.ns)) return false;
  rest_.ns += update.ns;
  rest_.moved = rest_.moved + update.moved;
  return true;
}

bool RunRecord::evaluation(const JsonNode& line) {
  EvaluationMark mark;
  if (!read(line, "step", mark.step) || !read(line, "validation_loss", mark.loss)) return false;
  evaluations_.add(mark);
  last_evaluation_ = mark;
  return true;
}

bool RunRecord::commit(const JsonNode& line) {
  uint64_t step = 0;
  if (!read(line, "step", step)) return false;
  commits_.add(step);
  commit_step_ = step;
  return true;
}

bool RunRecord::commits_removed(const JsonNode&) {
  commit_step_.reset();
  return true;
}

bool RunRecord::checkpoint(const JsonNode& line) {
  CheckpointMark mark;
  if (!read(line, "step", mark.step) || !read(line, "folder", mark.folder)) return false;
  last_checkpoint_ = mark.folder;
  checkpoints_.add(std::move(mark));
  return true;
}

bool RunRecord::memory(const JsonNode& line) {
  const uint64_t most = memory_.process_bytes;
  if (read_fields(line, memory_)) return false;
  memory_.process_bytes = std::max(most, memory_.process_bytes);
  return true;
}

bool RunRecord::picture(const JsonNode& line) {
  const JsonNode* const picture = line.find("picture");
  if (picture == nullptr || !picture->is(JsonNode::Kind::object)) return false;
  picture_ = json_text(*picture);
  return true;
}

bool RunRecord::warning(const JsonNode& line) {
  if (said_.size() == kLogLines) {
    ++left_out_;
    return true;
  }
  LoggedLine& said = said_.emplace_back();
  std::string level;
  if (!read(line, "level", level) || !read(line, "text", said.text)) return false;
  if (level == "error") said.level = LogLevel::error;
  return read(line, "step", said.completed_steps);
}

bool RunRecord::end(const JsonNode& line) {
  read(line, "stopped_by", stopped_by_);
  read(line, "text", state_text_);
  state_ = stopped_by_.empty() ? RunState::complete : RunState::stopped;
  if (state_text_.empty() && !stopped_by_.empty()) state_text_ = "stopped by " + stopped_by_;
  return read(line, "step", completed_steps_);
}

bool RunRecord::failed(const JsonNode& line) {
  std::string survives;
  read(line, "survives", survives);
  state_ = RunState::failed;
  if (!read(line, "failure", stopped_by_)) return false;
  if (!read(line, "text", state_text_))
    state_text_ = stopped_by_ + (survives.empty() ? "" : "\n  " + survives);
  return read(line, "step", completed_steps_);
}

RunRecord read_run(const std::filesystem::path& log) {
  constexpr const char* kWhat = "cannot read the log of steps";
  constexpr const char* kAdvice = "name a log of steps";
  std::ifstream file(log);
  if (!file) throw Error(ErrorKind::io, {kWhat, log.string(), system_reason(errno), kAdvice});
  RunRecord record;
  uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    try {
      record.add(line);
    } catch (const Error& error) {
      throw Error(error.kind(),
                  {kWhat, fmt::format("{}:{}: {}", log.string(), number, error.parts().subject.in(Door::cpp)),
                   error.parts().reason, error.parts().advice});
    }
  }
  if (file.bad()) throw Error(ErrorKind::io, {kWhat, log.string(), system_reason(errno), kAdvice});
  if (!record.has_begun())
    throw Error(ErrorKind::config, {kWhat, log.string(), "no line of it begins a run", kAdvice});
  return record;
}

}  // namespace terrace
