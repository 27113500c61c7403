#include <terrace/runtime/observe/log/step_log.h>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>

namespace terrace {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  throw Error(ErrorKind::io, {what, path, system_reason(error),
                              "name a file that can be written, or train without a log of steps"});
}

void write_counters(JsonWriter& json, const OffloadCounters& counters) {
  for (const CounterEntry& counter : kCounters) {
    if (counter.key.empty()) continue;
    const uint64_t value = counters.*counter.value;
    const std::string key(counter.key);
    if (counter.unit == CounterUnit::bytes) json.member(key + "_bytes", value);
    if (counter.unit == CounterUnit::count) json.member(key, value);
    if (counter.unit == CounterUnit::ns) json.member(key + "_seconds", seconds(value));
  }
}

}  // namespace

void write_time_parts(JsonWriter& json, std::string_view key, const TimeParts& parts) {
  json.begin_object(key);
  for (const TimeCause cause : kTimeCauses) json.member(key_of(cause), parts[cause]);
  json.end();
}

void write_uses(JsonWriter& json, std::span<const TierUse> uses) {
  json.list("uses", uses, [&](const TierUse& use) {
    json.object({{"purpose", use.purpose}, {"bytes", use.bytes}});
  });
}

StepLog::StepLog(const std::string& path, const Communicator* ranks) : path_(path), ranks_(ranks) {
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

void StepLog::start(uint64_t completed_steps, uint64_t steps, const std::string& model,
                    std::string_view config) {
  if (fd_ < 0) return;
  if (ranks_ != nullptr) lanes_ = ranks_->counters();
  JsonWriter json;
  json.begin_object().members({{"event", "start"}, {"step", completed_steps}, {"steps", steps}});
  json.member("time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  json.members({{"version", TERRACE_VERSION}, {"model", model}, {"config", json_raw(config)}});
  put(json);
}

void StepLog::fault_on_purpose(uint64_t step, const std::string& spec) {
  put(json_object({{"event", "fault on purpose"}, {"step", step}, {"inject", spec}}));
}

void StepLog::step_done(const StepReport& report) {
  JsonWriter json;
  json.begin_object().members({{"event", "step"}, {"step", report.step}, {"loss", report.loss}});
  json.members({{"lr", report.learning_rate}, {"gradient_norm", report.gradient_norm}});
  json.members({{"skipped", report.skipped}, {"loss_scale", report.loss_scale}});
  json.members({{"update_mode", name_of(report.update_mode)}, {"tokens", report.tokens}});
  json.member("seconds", seconds(report.total_ns));
  json.member("forward_backward_seconds", seconds(report.forward_backward_ns));
  json.member("forward_seconds", seconds(report.forward_ns));
  json.member("update_seconds", seconds(report.update_ns));
  json.member("keeping_seconds", seconds(report.keeping_ns));
  write_time_parts(json, "time_ns", report.moved.time);
  json.member("bound_by", key_of(resource_use(report.moved).binding));
  write_counters(json, report.moved);
  if (ranks_ != nullptr) write_lanes(json, report.moved);
  put(json);
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
  put(json_object({{"event", "evaluation"}, {"step", step}, {"validation_loss", validation_loss}}));
}

void StepLog::state_kept(const KeptState& kept) {
  if (kept.commit_step) put(json_object({{"event", "commit"}, {"step", *kept.commit_step}}));
  if (!kept.checkpoint) return;
  const SavedCheckpoint& saved = *kept.checkpoint;
  put(json_object({{"event", "checkpoint"}, {"step", saved.step}, {"folder", saved.folder.string()}}));
}

void StepLog::ended(const RunEnd& end) {
  if (end.failed) {
    put(json_object(
        {{"event", "failed"}, {"step", end.step}, {"failure", end.stopped_by}, {"survives", end.survives}}));
  } else {
    put(json_object(
        {{"event", "end"}, {"step", end.step}, {"stopped_by", json_text_or_null(end.stopped_by)}}));
  }
}

void StepLog::put(const std::string& line) {
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
