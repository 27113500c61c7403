#include "train/train_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/counter_table.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/config/tuning/tuning.h>
#include <terrace/runtime/train/planning/disk_rates.h>
#include <terrace/runtime/train/planning/predict.h>

#include "text_table.h"

namespace terrace {
namespace {

constexpr uint64_t kStepsThatPay = 100;  // so long a run is worth a second or two of measuring the machine

}  // namespace

std::optional<PlanPrediction> predict_training(const TrainerOptions& options, const TrainingSetup& setup,
                                               Console& console) {
  Workers workers = make_compute_threads(options.config.terrace);
  try {
    std::optional<MeasuredMachine> machine;
    if (options.steps >= kStepsThatPay) {
      machine = measure_machine(options.config, setup, workers);
      take_tuned_rates(tuning_folder(), tier_paths(options.config.placement), machine->rates);
    }
    return predict_run(options.config, setup, workers, machine ? &*machine : nullptr);
  } catch (const Error& error) {
    console.warning(fmt::format("this run is not predicted: {}", error.in(Door::program)));
    return std::nullopt;
  }
}

void PredictedSteps::add(const StepReport& report) {
  ++seen_;
  if (!prediction_ || !is_predicted(*prediction_, seen_, report)) return;
  ++steps_;
  moved_ = moved_ + report.moved;
  if (seconds_.size() < kMostTimes)
    seconds_.push_back(static_cast<double>(report.total_ns - report.keeping_ns) * 1e-9);
}

double PredictedSteps::median_seconds() const {
  std::vector<double> sorted = seconds_;
  std::ranges::sort(sorted);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

std::vector<PredictedSteps::Row> PredictedSteps::link_rows() const {
  std::vector<Row> rows;
  for (const CounterEntry& link : kLinks) {
    const auto predicted = static_cast<double>(prediction_->step.*link.value);
    const double measured = static_cast<double>(moved_.*link.value) / static_cast<double>(steps_);
    if (predicted > 0 || measured > 0)
      rows.push_back({std::string(link.name), std::string(link.key), predicted, measured});
  }
  return rows;
}

std::string PredictedSteps::text(const std::vector<TierSummary>& tiers) const {
  if (!prediction_ || steps_ == 0) return "";
  TextTable table({"prediction", "planned", "measured", "measured / planned"});
  const auto add = [&](const std::string& name, const std::string& planned, const std::string& measured,
                       double ratio) {
    table.add({name, planned, measured, fmt::format("{:.3f}", ratio)});
  };
  for (const Row& row : link_rows()) {
    add(row.name + ", per step", format_bytes(static_cast<uint64_t>(row.predicted)),
        format_bytes(static_cast<uint64_t>(row.measured)),
        row.predicted > 0 ? row.measured / row.predicted : 0);
  }
  for (const PredictedTier& tier : prediction_->tiers) {
    const auto found = std::ranges::find(tiers, tier.name, &TierSummary::name);
    if (found == tiers.end() || tier.peak_bytes == 0) continue;
    add(tier.name + " at its peak", format_bytes(tier.peak_bytes), format_bytes(found->peak_bytes),
        static_cast<double>(found->peak_bytes) / static_cast<double>(tier.peak_bytes));
  }
  if (prediction_->has_times)
    add("a step, the median", fmt::format("{:.3f} s", prediction_->step_seconds),
        fmt::format("{:.3f} s", median_seconds()), median_seconds() / prediction_->step_seconds);
  return table.text();
}

void PredictedSteps::write(JsonWriter& json) const {
  if (!prediction_ || steps_ == 0) {
    json.member("prediction", nullptr);
    return;
  }
  json.begin_object("prediction").member("update", name_of(prediction_->update_mode)).member("steps", steps_);
  json.list("links", link_rows(), [&](const Row& row) {
    json.object({{"link", row.key}, {"planned_bytes", row.predicted}, {"bytes_per_step", row.measured}});
  });
  const double planned = prediction_->step_seconds;
  json.member("planned_seconds", prediction_->has_times ? JsonValue(planned) : nullptr);
  json.member("median_seconds", median_seconds()).end();
}

}  // namespace terrace
