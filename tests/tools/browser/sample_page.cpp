// sample_page FILE: the page of a run that no test could wait for: a hundred thousand steps, ten thousand
// chunks, and everything that a page can have.
#include <cstdio>
#include <exception>
#include <limits>

#include <terrace/base/units.h>
#include <terrace/runtime/observe/page/picture_json.h>
#include <terrace/runtime/observe/page/report_file.h>

#include "runtime/observe/page/sample_picture.h"
#include "runtime/observe/page/sample_steps.h"

namespace terrace {
namespace {

constexpr uint64_t kSteps = 100'000;

PlanPrediction sample_prediction() {
  PlanPrediction prediction;
  const StepReport step = testing::sample_step(1);
  prediction.step = step.moved;
  prediction.step.param_read_bytes = 2 * step.moved.param_read_bytes;
  prediction.repeats_from_step = 2;
  prediction.tiers = {{"device", 4 * kGiB, 3 * kGiB, {}}, {"host", 16 * kGiB, 12 * kGiB, {}}};
  prediction.has_times = true;
  prediction.step_seconds = 0.0303;
  prediction.binding = Resource::disk_reads;
  prediction.rates = {{"nvme, reads", 2.75, "GB/s", "terrace tune"},
                      {"host -> device", 12, "GB/s", "measured now"}};
  return prediction;
}

RunHeader sample_header() {
  RunHeader header;
  header.version = "1.2.3";
  header.model = "a model of 12 layers";
  header.parameter_count = 124'439'808;
  header.planned_steps = kSteps;
  header.unigram_loss = 3.5;
  header.started_at = "2026-01-31T12:00:00Z";
  header.facts = {{"batch", "8 x 4 micro-batches"}, {"", "in a second line"}};
  header.machine = {{"processor", "one of a test"}};
  header.configuration = {{"optimizer.params.lr", "0.001", "ds.json:7:3", "as it is"},
                          {"terrace.seed", "42", "default", ""}};
  header.prediction = sample_prediction();
  return header;
}

void write_sample(const std::string& path) {
  testing::SampleRun run;
  run.log.start(sample_header());
  for (uint64_t step = 1; step <= kSteps; ++step) {
    StepReport report = testing::sample_step(step);
    report.skipped = step % 9973 == 0 || step == kSteps;
    if (report.skipped) report.loss = report.gradient_norm = std::numeric_limits<double>::quiet_NaN();
    run.log.step_done(report);
    if (step % 50 == 0) run.log.evaluated(step, report.loss + 0.1);
    if (step % 1000 == 0) run.checkpoint(step, "checkpoints/step-" + std::to_string(step));
    if (step % 20'000 == 0) run.said.warning("the disk is slow\n  give it time");
  }
  run.log.picture(4, picture_json(*testing::sample_picture(10'000)));
  const auto tier = [](const char* name, uint64_t budget_bytes, uint64_t bytes, const char* purpose) {
    return TierSummary{name, budget_bytes, "as configured", bytes, bytes, bytes, {{purpose, bytes}}};
  };
  run.log.memory(kSteps, {.tiers = {tier("device", 4 * kGiB, 3 * kGiB, "activations"),
                                    tier("host", 16 * kGiB, 12 * kGiB, "states")},
                          .paths = {},
                          .bound = {.h2d_bytes = 123'456'789'012},
                          .commits = {},
                          .process_bytes = kGiB});
  RunEnd end;
  end.step = kSteps;
  run.log.ended(end);
  const SteadyClock clock;
  ReportFile(path, clock).write(run.record, 1'700'100'000);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    terrace::write_sample(argv[1]);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
