// JobControl: a training run that answers questions and takes commands while it runs (`terrace ctl`,
// docs/control.md). Questions are answered at once from the state after the last step; the run's own thread
// carries out changes between two steps. It must never end a run because nobody can reach it.
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
#include <terrace/runtime/observe/step_place.h>

namespace terrace {

// The run that is asked, as it is when the answers begin.
struct JobSubject {
  JobMemory memory;
  std::string model;  // for people
  uint64_t step = 0;  // completed steps of the whole run
  UpdateMode update_mode = UpdateMode::after_backward;
  std::optional<uint64_t> commit_step = std::nullopt;  // the last durable commit's
};

struct JobControlOptions {
  std::filesystem::path folder;  // of the socket; empty: ControlFolder::default_path()
  uint64_t steps = 0;            // of the whole run
  StepShape shape = {};          // of a step, for the words that say where it is
  std::function<void()> stop;    // asks the run to end after its step; called on any thread
  // Sets the ranks of a status; null where there is one rank. Called on any thread.
  std::function<void(JobStatus&)> ranks = nullptr;
};

// The result of a request to save: the save that has begun, unless there is nothing to save to.
struct SaveAnswer {
  bool checkpoint = false;
  bool commit = false;
  std::optional<Error> refusal;
};

// The actions of the run itself, between two steps.
struct JobActions {
  FunctionRef<HostBudgetChange(uint64_t)> set_host_budget;
  FunctionRef<SaveAnswer()> save;
};

class JobControl final : public RunObserver {
 public:
  // If no socket can be opened, one warning says so and the run goes on without it. `log` outlives this.
  JobControl(const JobSubject& subject, const JobControlOptions& options, Log& log);

  bool listens() const { return server_ != nullptr; }
  // Only for a JobControl that listens.
  std::filesystem::path socket() const { return server_->socket(); }

  void step_done(const StepReport& report) override;
  void state_kept(const KeptState& kept) override;
  void commits_removed() override;
  // Carries out the queued requests, on the step thread between two steps; costs nothing if there are none.
  // Throws what an action throws, after answering.
  void serve(const JobActions& actions);

 private:
  std::optional<std::string> answer_at_once(const ControlRequest& request);
  std::string carry_out(const ControlRequest& request, const JobActions& actions);
  std::string status_answer();
  void publish();

  const JobMemory memory_;
  const JobControlOptions options_;
  JobStatus next_;  // belongs to the step thread
  Mutex mutex_;
  JobStatus published_ TERRACE_GUARDED_BY(mutex_);
  std::unique_ptr<ControlServer> server_;  // last: its thread uses the others
};

}  // namespace terrace
