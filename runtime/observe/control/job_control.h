// JobControl: a training run that can be asked and told things while it runs (`terrace ctl`,
// docs/control.md). Questions are answered at once from what the last step left behind; what changes the run
// is done by its own thread between two steps. It must never end a run because nobody can reach it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/base/mutex.h>
#include <terrace/runtime/observe/control/control_server.h>
#include <terrace/runtime/observe/control/job_status.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/train/trainer.h>

namespace terrace {

struct JobControlOptions {
  std::filesystem::path folder;  // of the socket; empty: ControlFolder::default_path()
  uint64_t steps = 0;            // of the whole run
  std::function<void()> stop;    // asks the run to end after its step; called on any thread
};

// What a request to save came to: what was begun, unless there is nothing to save to.
struct SaveAnswer {
  bool checkpoint = false;
  bool epoch = false;
  std::optional<Error> refusal;
};

// What the run does itself, between two steps.
struct JobActions {
  FunctionRef<HostBudgetChange(uint64_t)> set_host_budget;
  FunctionRef<SaveAnswer()> save;
};

class JobControl final : public RunObserver {
 public:
  // Where no socket can be had, one warning says so and the run goes on without. `trainer` and `log` outlive
  // this.
  JobControl(Trainer& trainer, const JobControlOptions& options, Log& log);

  bool listens() const { return server_ != nullptr; }
  // Only where it listens.
  std::filesystem::path socket() const { return server_->socket(); }

  void step_done(const StepReport& report) override;
  void state_kept(const KeptState& kept) override;
  void commits_removed() override;
  // Carries out what was asked for, on the step thread between two steps; costs nothing when that is nothing.
  // Throws what an action throws, after it was answered.
  void serve(const JobActions& actions);

 private:
  std::optional<std::string> answer_at_once(const ControlRequest& request);
  std::string carry_out(const ControlRequest& request, const JobActions& actions);
  std::string status_answer();
  void publish();

  Trainer& trainer_;
  const JobControlOptions options_;
  JobStatus next_;  // of the step thread
  Mutex mutex_;
  JobStatus published_ TERRACE_GUARDED_BY(mutex_);
  std::unique_ptr<ControlServer> server_;  // last: its thread uses the others
};

}  // namespace terrace
