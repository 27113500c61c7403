#include "train/run_report.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "option_words.h"
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

void RunReport::attach(Trainer& trainer, const TrainerPlan& plan) {
  trainer_ = &trainer;
  plan_ = &plan;
  record_.header.model = trainer.model_description();
  record_.header.resumed_at_step = trainer.completed_steps();
  record_.log().set_completed_steps(trainer.completed_steps());
}

void RunReport::step(const StepReport& report) {
  if (file_ == nullptr) return;
  record_.step(report);
  least_.add(report.update_mode);
  if (file_->is_due()) write();
}

void RunReport::finished(const FinishedUpdate& update) {
  if (file_ == nullptr) return;
  record_.finished(update);
}

void RunReport::evaluation(uint64_t step, double loss) {
  if (file_ == nullptr) return;
  record_.evaluation(step, loss);
  least_.add_evaluation();
}

void RunReport::picture(std::optional<StepPicture> picture) {
  if (picture) record_.picture = std::move(picture);
}

void RunReport::kept(const KeptState& kept) {
  if (file_ == nullptr) return;
  if (kept.epoch_step) record_.epoch(*kept.epoch_step);
  if (kept.checkpoint) record_.checkpoint(kept.checkpoint->step, kept.checkpoint->folder.string());
}

void RunReport::end(const std::optional<Error>& failure, bool was_to_stop) {
  if (!begun_) return;
  const RunState state = !failure ? RunState::complete : was_to_stop ? RunState::stopped : RunState::failed;
  record_.set_state(state, failure ? in_flags_and_keys(failure->what()) : "");
  write();
  begun_ = false;
}

void RunReport::give_up(const Error& failure) {
  trainer_ = nullptr;
  end(failure, false);
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
    console_.warning_once(unwritten.what());  // the training is as good without it
  }
}

}  // namespace terrace
