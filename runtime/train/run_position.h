// RunPosition: how far a run has come, as its saved states say it: steps, samples, loss scale, and whether
// the weights in memory are those that these numbers count. It must never know where the weights are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <terrace/base/log.h>
#include <terrace/runtime/train/checkpoint/epoch_info.h>
#include <terrace/runtime/train/setup/loss_scaler.h>

namespace terrace {

class RunPosition {
 public:
  // At the beginning of a run with an id of its own. `identity` is its run_identity(). The loss is scaled
  // where its parameters are fp16.
  RunPosition(CheckpointInfo identity, uint64_t chunk_elements, const Fp16Config& fp16);

  const CheckpointInfo& identity() const { return identity_; }
  uint64_t completed_steps() const { return completed_; }
  // The steps that changed the weights: those that fp16 skips do not count.
  uint64_t applied_updates() const { return completed_ - (scaler_ ? scaler_->skipped_steps() : 0); }
  uint64_t consumed_samples() const { return consumed_samples_; }
  bool scales_loss() const { return scaler_.has_value(); }
  // With which the next step runs; 1 where nothing scales it. It is a number of fp32, so that dividing by it
  // undoes the multiplication.
  float loss_scale() const { return scaler_ ? static_cast<float>(scaler_->scale()) : 1.0f; }

  // From here on the weights are those of no step, until they are known to be.
  void begin_step() { counts_are_of_weights_ = false; }
  // The step has left the weights as they were.
  void note_unchanged() { counts_are_of_weights_ = true; }
  // The step has ended with so many samples. A skipped one left the weights as they were. Throws what
  // LossScaler::update() throws.
  void count_step(uint64_t samples, bool skipped);
  bool counts_are_of_weights() const { return counts_are_of_weights_; }

  // For a saved state. Throws Error(cancelled) where the weights are of no step.
  EpochInfo info() const;
  // Goes on where `saved`, which lies in `where`, ended, and says to `log` which settings are others now.
  // Throws Error(corrupt) where its loss scale means nothing.
  void go_on_from(const CheckpointInfo& saved, const std::string& where, Log& log);

 private:
  CheckpointInfo identity_;
  const uint64_t chunk_elements_;
  std::optional<LossScaler> scaler_;
  uint64_t completed_ = 0;
  uint64_t consumed_samples_ = 0;
  bool counts_are_of_weights_ = true;
};

}  // namespace terrace
