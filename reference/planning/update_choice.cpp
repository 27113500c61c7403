#include <terrace/reference/planning/update_choice.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/reference/model/compute/compute_device.h>

namespace terrace {
namespace {

constexpr double kWorthWhile = 0.02;  // of a step
constexpr double kNoise = 0.05;       // by which steps differ for reasons of their own

double whole(const UpdateTimes& times) {
  return times.forward + times.backward + times.update;
}

// Each figure by itself: a step that was disturbed in one place does not count there.
UpdateTimes median_of(const std::vector<UpdateTimes>& seen) {
  UpdateTimes median;
  for (double UpdateTimes::*figure :
       {&UpdateTimes::forward, &UpdateTimes::backward, &UpdateTimes::update, &UpdateTimes::disk_wait,
        &UpdateTimes::update_bytes, &UpdateTimes::parameter_bytes, &UpdateTimes::gradient_bytes}) {
    std::vector<double> values;
    for (const UpdateTimes& times : seen) values.push_back(times.*figure);
    std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
    median.*figure = values[values.size() / 2];
  }
  return median;
}

std::string rules_text(const UpdateRules& rules) {
  if (rules.clips) return "; gradients are clipped, so that none can be applied before the last one is there";
  if (rules.scales_loss)
    return "; an overflow skips the step, so that no gradient is applied before the last";
  return "";
}

}  // namespace

UpdateRules update_rules(const TrainConfig& config, const TrainingSetup& setup) {
  UpdateRules rules;
  // Layer by layer all micro-batches go forward in one pass, and backward.
  rules.accumulation_steps = config.batch.layer_major ? 1 : config.batch.rounds().count();
  rules.clips = config.gradient_clipping > 0;
  rules.scales_loss = config.precision == DataType::fp16;
  rules.device_computes = facts_of(setup.compute).own_memory.has_value();
  const MemoryPlan& plan = setup.plan.memory;
  rules.read_ahead_bytes = plan.ring_slots * plan.ring_slot_bytes;
  std::vector<bool> is_embedding(setup.tensors.size());
  for (const TensorUse& use : setup.dry.trace) {
    if (use.kind != UseKind::forward || use.operation.find("embedding.") == std::string::npos) continue;
    for (const TensorId tensor : use.tensors) is_embedding[index_of(tensor)] = true;
  }
  double embeddings = 0;
  double all = 0;
  for (size_t t = 0; t < setup.tensors.size(); ++t) {
    if (!setup.tensors[t].trainable) continue;
    const auto elements = static_cast<double>(setup.tensors[t].element_count());
    all += elements;
    if (is_embedding[t]) embeddings += elements;
  }
  rules.embedding_part = all > 0 ? embeddings / all : 0;
  return rules;
}

UpdateTimes disk_bytes_of(const OffloadCounters& moved) {
  UpdateTimes times;
  times.update_bytes = static_cast<double>(moved.record_read_bytes + moved.record_write_bytes +
                                           moved.param_write_bytes + moved.update_gradient_read_bytes);
  times.parameter_bytes = static_cast<double>(moved.param_read_bytes);
  times.gradient_bytes = static_cast<double>(moved.gradient_write_bytes + moved.gradient_read_bytes -
                                             moved.update_gradient_read_bytes);
  return times;
}

UpdatePrediction predict_update(const UpdateTimes& times, const UpdateRules& rules) {
  const double passes = rules.accumulation_steps;
  const double seconds_per_byte = times.update_bytes > 0 ? times.update / times.update_bytes : 0;
  const double parameters = times.parameter_bytes / (2 * passes) * seconds_per_byte;
  const double gradients = times.gradient_bytes / passes * seconds_per_byte;
  const auto hidden = [&](double pass, double disk, double most) {
    return std::min(std::max(pass / passes - disk, 0.0), most);
  };
  const double beside = rules.device_computes ? times.update : times.disk_wait;
  const double streamed = beside * (1 - rules.embedding_part);
  const double ahead = static_cast<double>(rules.read_ahead_bytes) * seconds_per_byte;
  const bool as_they_land = !rules.clips && !rules.scales_loss;

  UpdatePrediction prediction;
  prediction.after_backward = whole(times);
  prediction.next_forward = prediction.after_backward - hidden(times.forward, parameters, streamed);
  prediction.during_backward =
      prediction.after_backward - hidden(times.backward, parameters + gradients,
                                         as_they_land ? streamed : std::min(times.disk_wait, ahead));
  const double step = prediction.after_backward * kWorthWhile;
  double best = prediction.after_backward - step;
  if (prediction.next_forward < best) {
    prediction.fastest = UpdateMode::next_forward;
    best = prediction.next_forward - step;
  }
  if (prediction.during_backward < best) prediction.fastest = UpdateMode::during_backward;
  return prediction;
}

std::optional<UpdateChoice::Decision> UpdateChoice::add(uint64_t step, const UpdateTimes& times) {
  if (state_ == State::done) return std::nullopt;
  seen_.push_back(times);
  const uint32_t wanted = 1 + (state_ == State::measures ? kMeasuredSteps : kJudgedSteps);
  if (seen_.size() < wanted) return std::nullopt;
  seen_.erase(seen_.begin());
  if (state_ == State::judges) return judge(step);
  return decide(step);
}

UpdateChoice::Decision UpdateChoice::decide(uint64_t step) {
  const UpdateTimes times = median_of(seen_);
  const UpdatePrediction prediction = predict_update(times, rules_);
  seen_.clear();
  mode_ = prediction.fastest;
  before_ = prediction.after_backward;
  state_ = mode_ == UpdateMode::after_backward ? State::done : State::judges;
  return {mode_,
          fmt::format("terrace.update: {} from step {} on; seconds a step, predicted: after_backward {:.3f}, "
                      "next_forward {:.3f}, during_backward {:.3f}{}",
                      name_of(mode_), step + 1, prediction.after_backward, prediction.next_forward,
                      prediction.during_backward, rules_text(rules_))};
}

// The prediction knows nothing of caches and of who else uses the machine.
std::optional<UpdateChoice::Decision> UpdateChoice::judge(uint64_t step) {
  const double now = whole(median_of(seen_));
  state_ = State::done;
  seen_.clear();
  if (now <= before_ * (1 + kNoise)) return std::nullopt;
  return Decision{UpdateMode::after_backward,
                  fmt::format("terrace.update: after_backward again from step {} on: a step took {:.3f} s in "
                              "{}, {:.3f} s before",
                              step + 1, now, name_of(mode_), before_)};
}

}  // namespace terrace
