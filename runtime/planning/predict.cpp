#include <terrace/runtime/planning/predict.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/offload/binding_resource.h>
#include <terrace/runtime/planning/device_rates.h>
#include <terrace/runtime/planning/dry_training.h>
#include <terrace/runtime/planning/step_model.h>
#include <terrace/runtime/update_choice.h>

namespace terrace {
namespace {

// Steps differ until every tier has been filled by the step before; that takes two or three.
constexpr uint32_t kMostSteps = 8;
// That are gone through together: what one leaves behind meets the next.
constexpr size_t kModelledSteps = 3;

uint64_t in_ns(double seconds) {
  return static_cast<uint64_t>(seconds * 1e9);
}

PlannedStep plan_step(DryTraining& training) {
  PlannedStep step;
  step.moved = training.step();
  step.events = training.take_record();
  step.update_order = training.update_order();
  return step;
}

bool moves_on_nvme(const PlanPrediction& prediction) {
  return disk_read_bytes(prediction.step) + disk_write_bytes(prediction.step) > 0;
}

void add_times(const StepModelInput& input, std::span<const PlannedStep> steps, PlanPrediction& prediction) {
  const StepSeconds seconds = model_step(input, steps);
  prediction.has_times = true;
  prediction.forward_seconds = seconds.forward;
  prediction.backward_seconds = seconds.backward;
  prediction.update_seconds = seconds.update;
  prediction.step_seconds = seconds.total();
  prediction.step.time = seconds.parts;
  prediction.step.h2d_busy_ns = in_ns(seconds.copy_in_busy);
  prediction.step.d2h_busy_ns = in_ns(seconds.copy_out_busy);
  prediction.step.disk_busy_ns = in_ns(seconds.disk_busy);
  if (input.rates.device) prediction.compute = {in_ns(seconds.device_busy), in_ns(seconds.processor_busy)};
  prediction.binding = prediction.use().binding;
  prediction.rates = named_rates(input.rates);
}

// What a step that updates after backward comes to, for the choice of another mode.
UpdateTimes times_of(const PlanPrediction& prediction) {
  const OffloadCounters& moved = prediction.step;
  UpdateTimes times = disk_bytes_of(moved);
  times.forward = prediction.forward_seconds;
  times.backward = prediction.backward_seconds;
  times.update = prediction.update_seconds;
  times.disk_wait = 1e-9 * static_cast<double>(moved.time[TimeCause::read] + moved.time[TimeCause::write]);
  times.disk_wait = std::min(times.disk_wait, times.update);
  return times;
}

bool is_possible(UpdateMode mode, const TrainingSetup& setup) {
  const FlatSpace space(setup.tensors, setup.plan.chunk_elements);
  return why_not(mode, space, setup.plan.memory, setup.offload).empty();
}

}  // namespace

MeasuredMachine measure_machine(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                                const MeasuringTime& time) {
  RateQuestion question = rate_question(config);
  question.round_ns = time.rate_ns;
  MachineRates rates = measure_rates(question, workers);
  TrialPlace place;
  if (facts_of(setup.compute).own_memory) {
    place = {setup.compute, setup.plan.memory.device_bytes};
    rates.device = measure_device_rates(*setup.compute, question,
                                        {place.device_bytes, setup.offload.lock_host_memory}, workers);
    rates.copy_bytes = rates.clear_bytes = 0;  // of a simulated device
  }
  return {std::move(rates), OperationTimes(*setup.model, config.batch.micro_batch_size, workers, place,
                                           time.operations_seconds)};
}

PlanPrediction predict(const TrainConfig& config, const TrainingSetup& setup, UpdateMode mode,
                       Workers& workers, const MeasuredMachine* machine) {
  DryTraining training(config, setup, mode, workers);
  PlanPrediction prediction;
  prediction.update_mode = mode;
  std::vector<PlannedStep> steps = {plan_step(training)};
  prediction.repeats_from_step = 1;
  for (uint32_t step = 2; step <= kMostSteps; ++step) {
    steps.push_back(plan_step(training));
    const bool repeats = moves_the_same(steps.back().moved, steps[steps.size() - 2].moved);
    if (!repeats) prediction.repeats_from_step = step;
    if (steps.size() > kModelledSteps) steps.erase(steps.begin());
    if (repeats && step >= prediction.repeats_from_step + 2) break;
  }
  prediction.step = steps.back().moved;
  prediction.step.time = {};
  prediction.tiers = training.tiers();
  if (machine != nullptr && (machine->rates.knows_disk() || !moves_on_nvme(prediction))) {
    const auto time_of = [&](std::string_view operation, uint64_t elements) {
      return machine->operations.of(operation, elements);
    };
    add_times({config, setup, mode, machine->rates, time_of}, steps, prediction);
  }
  if (training.offloader().keeps_epochs()) {
    training.commit();  // the first one has everything to write
    training.step();
    prediction.commit_write_bytes = training.commit().commit_write_bytes;
  }
  return prediction;
}

PlanPrediction predict_run(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                           const MeasuredMachine* machine) {
  const UpdateMode mode = config.terrace.update.value_or(UpdateMode::after_backward);
  const PlanPrediction prediction = predict(config, setup, mode, workers, machine);
  if (config.terrace.update || !prediction.has_times) return prediction;
  const UpdateMode fastest = predict_update(times_of(prediction), update_rules(config, setup)).fastest;
  if (fastest == mode || !is_possible(fastest, setup)) return prediction;
  return predict(config, setup, fastest, workers, machine);
}

}  // namespace terrace
