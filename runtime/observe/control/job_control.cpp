#include <terrace/runtime/observe/control/job_control.h>

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/observe/control/control_protocol.h>

namespace terrace {
namespace {

std::string set_answer(const HostBudgetChange& change, uint32_t record_chunks) {
  return control_answer({{"host_budget_bytes", change.budget_bytes},
                         {"kept_chunks", change.kept_chunks},
                         {"record_chunks", record_chunks},
                         {"read_bytes", change.read_bytes},
                         {"write_bytes", change.write_bytes},
                         {"ns", change.ns}});
}

}  // namespace

JobControl::JobControl(const JobSubject& subject, const JobControlOptions& options, Log& log)
    : memory_(subject.memory), options_(options) {
  next_.pid = static_cast<uint64_t>(getpid());
  next_.model = subject.model;
  next_.step = subject.step;
  next_.steps = options_.steps;
  next_.update_mode = name_of(subject.update_mode);
  next_.commit_step = subject.commit_step;
  next_.bound_by = "none";
  set_memory(next_, memory_);
  published_ = next_;
  try {
    server_ = std::make_unique<ControlServer>(
        options_.folder.empty() ? ControlFolder::default_path() : options_.folder,
        [this](const ControlRequest& request) { return answer_at_once(request); });
  } catch (const Error& error) {
    log.warning("this run cannot be reached by `terrace ctl`: " + error.without_advice());
  }
}

void JobControl::step_done(const StepReport& report) {
  if (server_ == nullptr) return;
  set_last_step(next_, report);
  set_memory(next_, memory_);
  publish();
}

void JobControl::state_kept(const KeptState& kept) {
  if (kept.commit_step) next_.commit_step = kept.commit_step;
  if (kept.checkpoint) next_.checkpoint_step = kept.checkpoint->step;
  if (kept.commit_step || kept.checkpoint) publish();
}

void JobControl::commits_removed() {
  next_.commit_step.reset();
  publish();
}

void JobControl::publish() {
  const MutexLock lock(mutex_);
  published_ = next_;
}

void JobControl::serve(const JobActions& actions) {
  if (server_ == nullptr || !server_->has_requests()) return;
  server_->serve([&](const ControlRequest& request) { return carry_out(request, actions); });
}

std::optional<std::string> JobControl::answer_at_once(const ControlRequest& request) {
  switch (request.command) {
    case ControlCommand::status:
      return status_answer();
    case ControlCommand::stop: {
      if (options_.stop) options_.stop();
      const MutexLock lock(mutex_);
      return control_answer({{"step", published_.step}});
    }
    case ControlCommand::set:
    case ControlCommand::save:
      break;
  }
  return std::nullopt;
}

std::string JobControl::status_answer() {
  JobStatus status;
  {
    const MutexLock lock(mutex_);
    status = published_;
  }
  const StepWatch& watch = memory_.offloader.report().watch();
  if (const std::optional<uint64_t> wait = watch.current())
    status.waits_for = watch.describe(*wait).value_or("");
  status.at = place_in_step(watch.activity(), options_.shape);
  if (options_.ranks) options_.ranks(status);
  return control_answer({{"status", json_raw(job_status_json(status))}});
}

// The status that follows an answer knows what the answer says.
std::string JobControl::carry_out(const ControlRequest& request, const JobActions& actions) {
  if (request.command == ControlCommand::set) {
    const HostBudgetChange change = actions.set_host_budget(request.host_memory_bytes);
    set_memory(next_, memory_);
    publish();
    return change.refusal ? control_refusal(*change.refusal) : set_answer(change, next_.record_chunks);
  }
  const SaveAnswer saved = actions.save();
  if (saved.refusal) return control_refusal(*saved.refusal);
  return control_answer({{"step", next_.step}, {"checkpoint", saved.checkpoint}, {"commit", saved.commit}});
}

}  // namespace terrace
