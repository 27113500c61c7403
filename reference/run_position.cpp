#include <terrace/reference/run_position.h>

#include <fmt/format.h>

#include <random>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/reference/run_identity.h>
#include <terrace/runtime/config/run_settings.h>

namespace terrace {
namespace {

uint64_t draw_run_id() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = uint64_t{random()} << 32 | random();
  return id;
}

}  // namespace

RunPosition::RunPosition(CheckpointInfo identity, uint64_t chunk_elements, const Fp16Config& fp16)
    : identity_(std::move(identity)), chunk_elements_(chunk_elements) {
  identity_.run_id = draw_run_id();
  if (identity_.type == DataType::fp16) scaler_.emplace(fp16);
}

void RunPosition::count_step(uint64_t samples, bool skipped) {
  counts_are_of_weights_ = skipped;
  if (scaler_) scaler_->update(skipped);
  ++completed_;
  consumed_samples_ += samples;
  counts_are_of_weights_ = true;
}

CheckpointInfo RunPosition::info() const {
  if (!counts_are_of_weights_) {
    throw Error(ErrorKind::cancelled, {"cannot keep", "the state in memory",
                                       "the last step did not end: the weights are of no step",
                                       "resume from the last commit or checkpoint"});
  }
  CheckpointInfo run = identity_;
  run.step = completed_;
  run.position[kConsumedSamples] = consumed_samples_;
  if (scaler_) run.loss_scaler = scaler_->state();
  run.chunk_elements = chunk_elements_;
  return run;
}

void RunPosition::go_on_from(const CheckpointInfo& saved, const std::string& where, Log& log) {
  BatchConfig batch;
  batch.gradient_group = gradient_group_of(identity_.settings);
  keep_gradient_group(saved.settings, where, batch);
  if (identity_.position.contains(kDataFingerprint) && !saved.position.contains(kDataFingerprint))
    log.warning(
        fmt::format("{} does not say which data it was trained on: this run goes on at sample {} of its own",
                    where, saved.position.at(kConsumedSamples)));
  for (const std::string& line : changed_settings(saved.settings, identity_.settings)) log.info(line);
  if (saved.run_id != 0) identity_.run_id = saved.run_id;
  completed_ = saved.step;
  consumed_samples_ = saved.position.at(kConsumedSamples);
  if (scaler_) scaler_->restore(saved.loss_scaler, where);
}

}  // namespace terrace
