// `terrace ctl`: asks a running job, or tells it something. It changes nothing by itself: the job acts
// between two of its steps, or says why it does not.
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include <terrace/base/units.h>

#include "command_line.h"
#include "inspect/job_choice.h"
#include "inspect/job_view.h"

namespace terrace {
namespace {

void pause_between_questions() {
  const timespec wait{0, 100'000'000};
  nanosleep(&wait, nullptr);
}

// ProcessEnd waits for the end of a process; a zombie has ended.
class ProcessEnd {
 public:
  explicit ProcessEnd(uint64_t pid)
      : fd_(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))) {}
  void wait() const {
    pollfd watched{fd_.get(), POLLIN, 0};
    while (fd_.get() >= 0 && poll(&watched, 1, -1) < 0 && errno == EINTR) {
    }
  }

 private:
  OwnedFd fd_;
};

bool is_true(const JsonNode& answer, const char* key) {
  const JsonNode* node = answer.find(key);
  return node != nullptr && node->boolean;
}

// Returns true if a save commits on nvme. A job of an earlier Terrace says "epoch".
bool commits(const JsonNode& answer) {
  return is_true(answer, "commit") || is_true(answer, "epoch");
}

constexpr uint64_t kStatusSeconds = 5;  // a job answers this at once

int patience_ms(uint64_t seconds) {
  constexpr uint64_t kMostSeconds = 1'000'000;
  return static_cast<int>(std::min(seconds, kMostSeconds) * 1000);
}

class Ctl final : public Subcommand {
 public:
  explicit Ctl(Command& app)
      : Subcommand(app, "ctl", "Ask a running job how it is doing, or tell it something") {
    const FlagGroup group(command_);
    group.text("WORDS", "", words_, "[JOB] status | set host-memory SIZE | save | stop");
    group.yes("--wait", wait_, "save: until it is durable; stop: until the job has ended");
    group.yes("--json", json_, "Print the answer as JSON");
    group.count(
        "--timeout", 1, timeout_seconds_,
        "Seconds that an answer may take (without it: 5 for status, what a step takes for the others)");
    command_.footer(
        "JOB is a process id or the path of a socket; it may be left out while one job runs. set and save "
        "are "
        "carried out when the step in progress is over, and stop is what SIGTERM does. No number that is "
        "trained depends on the host memory.\n\n"
        "Examples:\n"
        "  terrace ctl status\n"
        "  terrace ctl 4711 set host-memory 2GiB\n"
        "  terrace ctl stop --wait\n");
  }

  int run() override {
    const ControlRequest request = parse_words();
    if (wait_ && request.command != ControlCommand::save && request.command != ControlCommand::stop)
      refuse("--wait", "it belongs to save and stop", "leave it out: the answer comes when it is done");
    const RunningJob job = find_job(job_);
    ControlClient client(job.socket, patience_ms(timeout_seconds_.value_or(kStatusSeconds)));
    const JobStatus before = ask_status(client);
    const ProcessEnd end(before.pid);
    client.set_patience(timeout_seconds_ ? std::optional(patience_ms(*timeout_seconds_)) : std::nullopt);
    const JsonNode answer = client.ask(request);
    if (wait_) wait_for(client, request, answer, end);
    print_result(json_ ? json_text(answer) + "\n" : text_of(request, answer, before));
    return kDone;
  }

 private:
  ControlRequest parse_words();
  static std::string text_of(const ControlRequest& request, const JsonNode& answer, const JobStatus& before);
  static void wait_for(ControlClient& client, const ControlRequest& request, const JsonNode& answer,
                       const ProcessEnd& end);

  std::vector<std::string> words_;
  std::string job_;
  bool wait_ = false;
  bool json_ = false;
  std::optional<uint64_t> timeout_seconds_;
};

ControlRequest Ctl::parse_words() {
  std::vector<std::string> words = words_;
  if (!words.empty() && is_job(words.front())) {
    job_ = words.front();
    words.erase(words.begin());
  }
  if (words.empty()) refuse("terrace ctl", "it is not said what to do", "say status, set, save or stop");
  ControlRequest request;
  request.command = control_command_from_name(words[0]);
  const bool sets = request.command == ControlCommand::set;
  if (sets && words.size() > 1) require_settable(words[1]);
  if (words.size() != (sets ? 3 : 1)) {
    refuse("terrace ctl " + words[0], sets ? "a setting and its value follow" : "nothing follows it",
           sets ? "for example: terrace ctl set host-memory 2GiB" : "leave out \"" + words.back() + "\"");
  }
  if (sets) request.host_memory_bytes = parse_bytes(words[2], words[1]);
  return request;
}

std::string Ctl::text_of(const ControlRequest& request, const JsonNode& answer, const JobStatus& before) {
  const auto number = [&](const char* key) { return json_whole_number(answer, key); };
  switch (request.command) {
    case ControlCommand::status: {
      const JsonNode* status = answer.find("status");
      return job_view(parse_job_status(status != nullptr ? *status : JsonNode{}));
    }
    case ControlCommand::set:
      if (number("record_chunks") == 0) {
        return fmt::format("host memory {}: there are no optimizer states in it\n",
                           format_bytes(number("host_budget_bytes")));
      }
      return fmt::format(
          "host memory {}: {} of {} chunks of optimizer states stay in it, {} before; {} read, {} written in "
          "{}\n",
          format_bytes(number("host_budget_bytes")), number("kept_chunks"), number("record_chunks"),
          before.kept_chunks, format_bytes(number("read_bytes")), format_bytes(number("write_bytes")),
          format_duration(number("ns")));
    case ControlCommand::save:
      return fmt::format("saving step {}: {}\n", number("step"),
                         is_true(answer, "checkpoint") && commits(answer)
                             ? "a commit on nvme and a checkpoint"
                         : is_true(answer, "checkpoint") ? "a checkpoint"
                                                         : "a commit on nvme");
    case ControlCommand::stop:
      return fmt::format("job {} stops when the step in progress is over (step {} is done)\n", before.pid,
                         number("step"));
  }
  return "";
}

void Ctl::wait_for(ControlClient& client, const ControlRequest& request, const JsonNode& answer,
                   const ProcessEnd& end) {
  const uint64_t step = json_whole_number(answer, "step");
  if (request.command == ControlCommand::stop) return end.wait();
  while (true) {
    const JobStatus status = ask_status(client);
    const bool has_commit = !commits(answer) || status.commit_step >= step;
    const bool has_checkpoint = !is_true(answer, "checkpoint") || status.checkpoint_step >= step;
    if (has_commit && has_checkpoint) return;
    pause_between_questions();
  }
}

}  // namespace

std::unique_ptr<Subcommand> add_ctl(Command& app) {
  return std::make_unique<Ctl>(app);
}

}  // namespace terrace
