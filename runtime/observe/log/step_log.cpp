#include <terrace/runtime/observe/log/step_log.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <terrace/base/error.h>

namespace terrace {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  throw Error(ErrorKind::io, {what, path, system_reason(error),
                              "name a file that can be written, or train without a log of steps"});
}

}  // namespace

StepLog::StepLog(const std::string& path, const Communicator* ranks, LogRecord* said)
    : path_(path), ranks_(ranks), said_(said) {
  if (path_.empty()) return;
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot open the log", path_, errno);
  // A run that was killed may have left half a line. A pipe cannot be read, so it has no last byte.
  char last = '\n';
  const off_t size = lseek(fd_, 0, SEEK_END);
  if (size > 0 && pread(fd_, &last, 1, size - 1) == 1 && last != '\n') put("");
}

StepLog::~StepLog() {
  if (fd_ >= 0) close(fd_);
}

void StepLog::start(const RunHeader& header) {
  completed_steps_ = header.resumed_at_step;
  if (ranks_ != nullptr) lanes_ = ranks_->counters();
  put(start_line(header));
  put_said();
}

void StepLog::fault_on_purpose(uint64_t step, const std::string& spec) {
  put(log_line("fault on purpose", step, "inject", spec));
}

void StepLog::memory(uint64_t step, const RunMemory& memory) {
  JsonWriter json;
  put(write_fields(json.begin_object().members({{"event", "memory"}, {"step", step}}), memory));
}

void StepLog::picture(uint64_t step, std::string_view picture) {
  put(log_line("picture", step, "picture", json_raw(picture)));
}

void StepLog::step_done(const StepReport& report) {
  completed_steps_ = report.step;
  put_said();
  JsonWriter json;
  write_fields(json.begin_object().member("event", "step"), report);
  write_counters(json, report.moved);
  if (ranks_ != nullptr) write_lanes(json, report.moved);
  put(json);
  if (said_ != nullptr) said_->set_completed_steps(report.step);
}

void StepLog::update_finished(const FinishedUpdate& update) {
  JsonWriter json;
  json.begin_object().members({{"event", "update"}, {"step", completed_steps_}}).begin_object("rest");
  json.member("seconds", seconds(update.ns));
  write_counters(json, update.moved);
  put(json.end());
}

// What was said since the last line, by whoever says it in whatever thread.
void StepLog::put_said() {
  if (said_ == nullptr) return;
  for (const LoggedLine& line : said_->take()) put(warning_line(line));
}

// What has been carried out between the ends of two steps, whatever it was for.
void StepLog::write_lanes(JsonWriter& json, const OffloadCounters& moved) {
  // A wait for what crosses between hosts is one for the lane behind it. No step waits for the commit lane:
  // that is the committer's.
  std::array<uint64_t OffloadCounters::*, kLaneCount> waits{};
  waits[index_of(Lane::gather)] = &OffloadCounters::gather_wait_ns;
  waits[index_of(Lane::exchange)] = &OffloadCounters::exchange_wait_ns;
  waits[index_of(Lane::control)] = &OffloadCounters::ballot_wait_ns;
  const CommCounters now = ranks_->counters();
  json.begin_object("comms");
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    json.begin_object(name_of(static_cast<Lane>(lane)));
    json.members({{"operations", now[lane].operations - lanes_[lane].operations},
                  {"in_bytes", now[lane].in_bytes - lanes_[lane].in_bytes},
                  {"out_bytes", now[lane].out_bytes - lanes_[lane].out_bytes}});
    if (waits[lane] != nullptr) json.member("wait_seconds", seconds(moved.*waits[lane]));
    json.end();
  }
  json.end();
  lanes_ = now;
}

void StepLog::evaluated(uint64_t step, double validation_loss) {
  put(log_line("evaluation", step, "validation_loss", validation_loss));
}

void StepLog::state_kept(const KeptState& kept) {
  if (kept.commit_step) put(json_object({{"event", "commit"}, {"step", *kept.commit_step}}));
  if (!kept.checkpoint) return;
  put(log_line("checkpoint", kept.checkpoint->step, "folder", kept.checkpoint->folder.string()));
}

void StepLog::commits_removed() {
  put(json_object({{"event", "commits removed"}, {"step", completed_steps_}}));
}

void StepLog::ended(const RunEnd& end) {
  put_said();
  put(end_line(end));
}

void StepLog::put(const std::string& line) {
  if (reader_) reader_(line);
  if (fd_ < 0) return;
  // Each line is one write, because O_APPEND keeps lines of different writers apart. Only a write that ended
  // short goes on, and the next one says why.
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) fail("cannot write to the log", path_, errno);
    if (written > 0) done += static_cast<size_t>(written);
  }
}

}  // namespace terrace
