#include <terrace/reference/planning/predict.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <terrace/base/units.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/reference/planning/device_rates.h>
#include <terrace/reference/planning/dry_training.h>
#include <terrace/reference/planning/rank_rates.h>
#include <terrace/reference/planning/step_model.h>
#include <terrace/reference/planning/update_choice.h>

namespace terrace {
namespace {

// Steps differ until every tier has been filled by the step before; that takes two or three.
constexpr uint32_t kMostSteps = 8;

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

void add_times(const StepSeconds& seconds, const MachineRates& rates, const TrainConfig& config,
               PlanPrediction& prediction) {
  prediction.has_times = true;
  prediction.forward_seconds = seconds.forward;
  prediction.backward_seconds = seconds.backward;
  prediction.update_seconds = seconds.update;
  prediction.step_seconds = seconds.total();
  prediction.ranks = seconds.ranks;
  prediction.pass_seconds = seconds.passes;
  prediction.links = rank_links(rates, config);
  prediction.step.time = seconds.parts;
  prediction.step.h2d_busy_ns = in_ns(seconds.copy_in_busy);
  prediction.step.d2h_busy_ns = in_ns(seconds.copy_out_busy);
  prediction.step.disk_busy_ns = in_ns(seconds.disk_busy);
  if (rates.device) prediction.compute = {in_ns(seconds.device_busy), in_ns(seconds.processor_busy)};
  prediction.binding = prediction.use().binding;
  prediction.rates = named_rates(rates);
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

}  // namespace

bool is_possible(UpdateMode mode, const TrainingSetup& setup) {
  const FlatSpace space(setup.tensors, setup.plan.chunk_elements);
  return why_not(mode, space, setup.plan.memory, setup.offload).empty();
}

void MeasuredMachine::divide_processors(double share) {
  for (double MachineRates::*const rate :
       {&MachineRates::copy_bytes, &MachineRates::clear_bytes, &MachineRates::sum_elements,
        &MachineRates::accumulate_elements, &MachineRates::update_elements,
        &MachineRates::update_together_elements, &MachineRates::checksum_bytes, &MachineRates::rank_bytes})
    rates.*rate *= share;
  if (rates.device) return;  // which computes, and whose chunks are its own
  rates.chunk_seconds /= share;
  operations.slow_down(1 / share);
}

MeasuredMachine measure_machine(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                                const MeasuringTime& time) {
  RateQuestion question = rate_question(config);
  question.round_ns = time.rate_ns;
  MachineRates rates = measure_rates(question, workers);
  if (config.batch.ranks > 1 && config.ranks_on_host > 1) measure_rank_rates(time.rate_ns, rates);
  TrialPlace place{.products = processor_products(config)};
  if (facts_of(setup.compute).own_memory) {
    place = {setup.compute, setup.plan.memory.device_bytes};
    rates.device = measure_device_rates(*setup.compute, question,
                                        {place.device_bytes, setup.offload.lock_host_memory}, workers);
    rates.copy_bytes = rates.clear_bytes = 0;  // of a simulated device
    rates.chunk_seconds = rates.device->chunk_seconds;
  }
  const uint32_t sequences = config.batch.micro_batch_size;
  if (time.given_flops > 0)
    return {std::move(rates),
            OperationTimes(uint64_t{sequences} * setup.model->config().context, time.given_flops)};
  return {std::move(rates), OperationTimes(*setup.model, sequences, workers, place, time.operations_seconds)};
}

MeasuredMachine assume_machine(const TrainConfig& config, const TrainingSetup& setup,
                               const ReferenceMachine& machine, double given_flops) {
  const uint64_t tokens = uint64_t{config.batch.micro_batch_size} * setup.model->config().context;
  MachineRates rates = reference_rates(machine, config.placement);
  OperationTimes operations = given_flops > 0
                                  ? OperationTimes(tokens, given_flops)
                                  : OperationTimes(tokens, reference_flops(machine), rates.origin);
  return {std::move(rates), std::move(operations)};
}

PlanPrediction predict(const TrainConfig& config, const TrainingSetup& setup, UpdateMode mode,
                       Workers& workers, const StepTimes* times, PlanScope scope) {
  DryTraining training(config, setup, mode, workers);
  std::optional<StepModel> model;
  if (times != nullptr) {
    model.emplace(StepModelInput{config, setup, mode, *times});
  } else {
    training.stop_recording();
  }
  PlanPrediction prediction;
  prediction.update_mode = mode;
  StepSeconds seconds;
  for (uint32_t step = 1; step <= kMostSteps; ++step) {
    const PlannedStep planned = plan_step(training);
    if (model) seconds = model->next(planned);
    const bool repeats = step > 1 && moves_the_same(planned.moved, prediction.step);
    if (!repeats) prediction.repeats_from_step = step;
    prediction.step = planned.moved;
    if (repeats && step >= prediction.repeats_from_step + 2) break;
  }
  training.stop_recording();
  prediction.step.time = {};
  prediction.tiers = training.tiers();
  if (model && (times->rates.knows_disk() || !moves_on_nvme(prediction)))
    add_times(seconds, times->rates, config, prediction);
  if (scope == PlanScope::steps_and_commits && training.offloader().commits().are_kept()) {
    training.commit();  // the first one has everything to write
    training.step();
    prediction.commit_write_bytes = training.commit().commit_write_bytes;
  }
  return prediction;
}

PlanPrediction predict_run(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                           const StepTimes* step_times, PlanScope scope) {
  const UpdateMode mode = config.terrace.update.value_or(UpdateMode::after_backward);
  const PlanPrediction prediction = predict(config, setup, mode, workers, step_times, scope);
  if (config.terrace.update || !prediction.has_times) return prediction;
  const UpdateMode fastest = predict_update(times_of(prediction), update_rules(config, setup)).fastest;
  if (fastest == mode || !is_possible(fastest, setup)) return prediction;
  return predict(config, setup, fastest, workers, step_times, scope);
}

PlanPrediction predict_run(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                           const MeasuredMachine* machine) {
  if (machine == nullptr) return predict_run(config, setup, workers, static_cast<const StepTimes*>(nullptr));
  const auto time_of = [&](std::string_view operation, uint64_t elements) {
    return machine->operations.of(operation, elements);
  };
  const StepTimes times{machine->rates, time_of};
  return predict_run(config, setup, workers, &times);
}

}  // namespace terrace
