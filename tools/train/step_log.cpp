#include "train/step_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <ctime>

#include <terrace/base/error.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  throw Error(ErrorKind::io, {what, path, system_reason(error),
                              "name a file that can be written with --log, or leave it out"});
}

double seconds(uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_time_parts(const TimeParts& parts) {
  std::string members;
  for (const TimeCause cause : kTimeCauses)
    members += fmt::format(R"({}"{}": {})", members.empty() ? "" : ", ", key_of(cause), parts[cause]);
  return members;
}

std::string json_counters(const OffloadCounters& counters) {
  return fmt::format(
      R"(, "h2d_bytes": {}, "d2h_bytes": {}, "param_read_bytes": {}, "direct_read_bytes": {}, "param_write_bytes": {}, )"
      R"("record_read_bytes": {}, "record_write_bytes": {}, "gradient_read_bytes": {}, "gradient_write_bytes": {}, )"
      R"("activation_d2h_bytes": {}, "activation_h2d_bytes": {}, "activation_read_bytes": {}, "activation_write_bytes": {}, "fetches": {}, "demand_fetches": {}, "evictions": {}, )"
      R"("fetch_wait_seconds": {}, "activation_wait_seconds": {}, "landing_wait_seconds": {}, "update_wait_seconds": {}, "turn_wait_seconds": {}, "pending_update_wait_seconds": {}, )"
      R"("commit_write_bytes": {}, "manifest_bytes": {}, "commit_wait_seconds": {})",
      counters.h2d_bytes, counters.d2h_bytes, counters.param_read_bytes, counters.direct_read_bytes,
      counters.param_write_bytes, counters.record_read_bytes, counters.record_write_bytes,
      counters.gradient_read_bytes, counters.gradient_write_bytes, counters.activation_d2h_bytes,
      counters.activation_h2d_bytes, counters.activation_read_bytes, counters.activation_write_bytes,
      counters.fetch_count, counters.demand_fetch_count, counters.eviction_count,
      json_number(seconds(counters.fetch_wait_ns)), json_number(seconds(counters.activation_wait_ns)),
      json_number(seconds(counters.landing_wait_ns)), json_number(seconds(counters.update_wait_ns)),
      json_number(seconds(counters.turn_wait_ns)), json_number(seconds(counters.pending_update_wait_ns)),
      counters.commit_write_bytes, counters.manifest_bytes, json_number(seconds(counters.commit_wait_ns)));
}

StepLog::StepLog(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot open the log", path_, errno);
  // A run that was killed may have left half a line. What cannot be read (a pipe) has no last byte.
  char last = '\n';
  const off_t size = lseek(fd_, 0, SEEK_END);
  if (size > 0 && pread(fd_, &last, 1, size - 1) == 1 && last != '\n') put("");
}

StepLog::~StepLog() {
  if (fd_ >= 0) close(fd_);
}

void StepLog::start(uint64_t completed_steps, uint64_t steps, const std::string& model,
                    const TrainConfig& config) {
  if (fd_ < 0) return;
  std::string values;
  for (const ResolvedValue& value : config.resolved)
    values += fmt::format("{}{}: {}", values.empty() ? "" : ", ", json_quoted(value.key), value.value);
  put(fmt::format(
      R"({{"event": "start", "step": {}, "steps": {}, "time": "{:%Y-%m-%dT%H:%M:%SZ}", "version": "{}", )"
      R"("model": {}, "config": {{{}}}}})",
      completed_steps, steps, fmt::gmtime(std::time(nullptr)), TERRACE_VERSION, json_quoted(model), values));
}

void StepLog::fault_on_purpose(uint64_t step, const std::string& spec) {
  put(fmt::format(R"({{"event": "fault on purpose", "step": {}, "inject": {}}})", step, json_quoted(spec)));
}

void StepLog::step(const StepReport& report) {
  put(fmt::format(
      R"({{"event": "step", "step": {}, "loss": {}, "lr": {}, "gradient_norm": {}, "skipped": {}, "loss_scale": {}, "update_mode": "{}", "tokens": {}, )"
      R"("seconds": {}, "forward_backward_seconds": {}, "forward_seconds": {}, "update_seconds": {}, "keeping_seconds": {}, "time_ns": {{{}}}, "bound_by": "{}"{}}})",
      report.step, json_number(report.loss), json_number(report.learning_rate),
      json_number(report.gradient_norm), report.skipped, json_number(report.loss_scale),
      name_of(report.update_mode), report.tokens, json_number(seconds(report.total_ns)),
      json_number(seconds(report.forward_backward_ns)), json_number(seconds(report.forward_ns)),
      json_number(seconds(report.update_ns)), json_number(seconds(report.keeping_ns)),
      json_time_parts(report.moved.time), key_of(resource_use(report.moved).binding),
      json_counters(report.moved)));
}

void StepLog::evaluation(uint64_t step, double validation_loss) {
  put(fmt::format(R"({{"event": "evaluation", "step": {}, "validation_loss": {}}})", step,
                  json_number(validation_loss)));
}

void StepLog::epoch(uint64_t step) {
  put(fmt::format(R"({{"event": "commit", "step": {}}})", step));
}

void StepLog::checkpoint(uint64_t step, const std::string& folder) {
  put(fmt::format(R"({{"event": "checkpoint", "step": {}, "folder": {}}})", step, json_quoted(folder)));
}

void StepLog::end(uint64_t step, std::string_view stopped_by) {
  put(fmt::format(R"({{"event": "end", "step": {}, "stopped_by": {}}})", step,
                  stopped_by.empty() ? "null" : json_quoted(stopped_by)));
}

void StepLog::failed(uint64_t step, std::string_view what_failed, std::string_view survives) {
  put(fmt::format(R"({{"event": "failed", "step": {}, "failure": {}, "survives": {}}})", step,
                  json_quoted(what_failed), json_quoted(survives)));
}

void StepLog::put(const std::string& line) {
  if (fd_ < 0) return;
  // One write per line: O_APPEND keeps lines of different writers apart. Only what ends short goes on, which
  // says why it did.
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) fail("cannot write to the log", path_, errno);
    if (written > 0) done += static_cast<size_t>(written);
  }
}

}  // namespace terrace
