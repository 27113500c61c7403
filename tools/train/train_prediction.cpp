#include "train/train_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/counter_table.h>
#include <terrace/reference/planning/disk_rates.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/config/tuning/tuning.h>

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

namespace {

struct Row {
  std::string_view name;
  std::string_view key;
  double predicted = 0;
  double measured = 0;
};

bool is_measured(const RunRecord& run) {
  return run.header().prediction && run.predicted().steps > 0;
}

std::vector<Row> link_rows(const RunRecord& run) {
  std::vector<Row> rows;
  for (const CounterEntry& link : kLinks) {
    const auto predicted = static_cast<double>(run.header().prediction->step.*link.value);
    const double measured =
        static_cast<double>(run.predicted().moved.*link.value) / static_cast<double>(run.predicted().steps);
    if (predicted > 0 || measured > 0) rows.push_back({link.name, link.key, predicted, measured});
  }
  return rows;
}

}  // namespace

std::string prediction_text(const RunRecord& run) {
  if (!is_measured(run)) return "";
  const PlanPrediction& prediction = *run.header().prediction;
  TextTable table({"prediction", "planned", "measured", "measured / planned"});
  const auto add = [&](const std::string& name, const std::string& planned, const std::string& measured,
                       double ratio) {
    table.add({name, planned, measured, fmt::format("{:.3f}", ratio)});
  };
  for (const Row& row : link_rows(run)) {
    add(std::string(row.name) + ", per step", format_bytes(static_cast<uint64_t>(row.predicted)),
        format_bytes(static_cast<uint64_t>(row.measured)),
        row.predicted > 0 ? row.measured / row.predicted : 0);
  }
  for (const PredictedTier& tier : prediction.tiers) {
    const std::vector<TierSummary>& tiers = run.memory().tiers;
    const auto found = std::ranges::find(tiers, tier.name, &TierSummary::name);
    if (found == tiers.end() || tier.peak_bytes == 0) continue;
    add(tier.name + " at its peak", format_bytes(tier.peak_bytes), format_bytes(found->peak_bytes),
        static_cast<double>(found->peak_bytes) / static_cast<double>(tier.peak_bytes));
  }
  const double median = run.predicted().median_seconds();
  if (prediction.has_times)
    add("a step, the median", fmt::format("{:.3f} s", prediction.step_seconds),
        fmt::format("{:.3f} s", median), median / prediction.step_seconds);
  return table.text();
}

void write_prediction(JsonWriter& json, const RunRecord& run) {
  if (!is_measured(run)) {
    json.member("prediction", nullptr);
    return;
  }
  const PlanPrediction& prediction = *run.header().prediction;
  json.begin_object("prediction").member("update", name_of(prediction.update_mode));
  json.member("steps", run.predicted().steps);
  json.list("links", link_rows(run), [&](const Row& row) {
    json.object({{"link", row.key}, {"planned_bytes", row.predicted}, {"bytes_per_step", row.measured}});
  });
  json.member("planned_seconds", prediction.has_times ? JsonValue(prediction.step_seconds) : nullptr);
  json.member("median_seconds", run.predicted().median_seconds()).end();
}

}  // namespace terrace
