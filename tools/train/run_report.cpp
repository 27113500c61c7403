#include "train/run_report.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "train/machine_facts.h"
#include "train/train_summary.h"

namespace terrace {

RunReport::RunReport(const std::string& path, Console& console) : console_(console) {
  if (path.empty()) return;
  file_ = std::make_unique<ReportFile>(path, clock_);
  console_.copy_to(&record_.log());
}

RunReport::~RunReport() {
  console_.copy_to(nullptr);
}

void RunReport::begin(const TrainerOptions& options, const TrainerPlan& plan, std::vector<ReportFact> facts,
                      double unigram_loss, const std::optional<PlanPrediction>& prediction) {
  if (file_ == nullptr) return;
  RunHeader& header = record_.header;
  header.version = TERRACE_VERSION;
  header.model = facts.empty() ? "" : facts.front().text;
  header.parameter_count = plan.parameter_count;
  header.planned_steps = options.steps;
  header.unigram_loss = unigram_loss;
  header.prediction = prediction;
  header.started_at = std::time(nullptr);
  header.facts = std::move(facts);
  header.machine = machine_facts();
  header.configuration = options.config.resolved;
  file_->write(record_, header.started_at);
  begun_ = true;
}

void RunReport::attach(Trainer& trainer, const TrainerPlan& plan, StepRecording& recording) {
  trainer_ = &trainer;
  plan_ = &plan;
  recording_ = &recording;
  record_.header.model = trainer.model_description();
  record_.header.resumed_at_step = trainer.completed_steps();
  record_.log().set_completed_steps(trainer.completed_steps());
}

void RunReport::step_done(const StepReport& report) {
  if (file_ == nullptr) return;
  take_picture();
  record_.step(report);
  least_.add(report.update_mode);
  if (file_->is_due()) write();
}

void RunReport::take_picture() {
  if (std::optional<StepPicture> picture = recording_->take_picture()) record_.picture = std::move(picture);
}

void RunReport::update_finished(const FinishedUpdate& update) {
  if (file_ == nullptr) return;
  record_.finished(update);
}

void RunReport::evaluated(uint64_t step, double loss) {
  if (file_ == nullptr) return;
  record_.evaluation(step, loss);
  least_.add_evaluation();
}

void RunReport::state_kept(const KeptState& kept) {
  if (file_ == nullptr) return;
  if (kept.commit_step) record_.commit(*kept.commit_step);
  if (kept.checkpoint) record_.checkpoint(kept.checkpoint->step, kept.checkpoint->folder.string());
}

void RunReport::ended(const RunEnd& run) {
  if (!begun_) return;
  take_picture();
  end(run.failed             ? RunState::failed
      : run.error != nullptr ? RunState::stopped
                             : RunState::complete,
      run.error);
}

void RunReport::give_up(const Error& failure) {
  if (!begun_) return;
  trainer_ = nullptr;
  end(RunState::failed, &failure);
}

void RunReport::end(RunState state, const Error* error) {
  record_.set_state(state, error != nullptr ? error->in(Door::program) : "");
  write();
  begun_ = false;
}

void RunReport::write() {
  if (trainer_ != nullptr) {
    RunSummary now;
    now.least = least_;
    add_memory(now, *trainer_, *plan_);
    RunMemory& memory = record_.memory;
    const uint64_t most_before = memory.process_bytes;
    memory = {std::move(now.tiers), std::move(now.paths), now.bound,
              std::max(most_before, now.process_bytes)};
  }
  try {
    file_->write(record_, std::time(nullptr));
  } catch (const Error& unwritten) {
    console_.warning_once(unwritten.in(Door::program));  // training goes on as well without the page
  }
}

}  // namespace terrace
