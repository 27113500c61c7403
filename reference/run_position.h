// RunPosition: the progress of a run in its saved states: steps, samples, loss scale, and whether the weights
// in memory belong to these numbers. It must never know where the weights are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <terrace/base/log.h>
#include <terrace/runtime/checkpoint/commit_info.h>
#include <terrace/runtime/config/loss_scaler.h>

namespace terrace {

class RunPosition {
 public:
  // Starts a run with an id of its own. `identity` is its run_identity(). The loss is scaled if its
  // parameters are fp16.
  RunPosition(CheckpointInfo identity, uint64_t chunk_elements, const Fp16Config& fp16);

  const CheckpointInfo& identity() const { return identity_; }
  void set_run_id(uint64_t id) { identity_.run_id = id; }
  uint64_t completed_steps() const { return completed_; }
  // The steps that changed the weights: steps that fp16 skips do not count.
  uint64_t applied_updates() const { return completed_ - (scaler_ ? scaler_->skipped_steps() : 0); }
  uint64_t consumed_samples() const { return consumed_samples_; }
  bool scales_loss() const { return scaler_.has_value(); }
  // The loss scale of the next step; 1 without a loss scaler. It is a number of fp32, so that dividing by it
  // undoes the multiplication.
  float loss_scale() const { return scaler_ ? static_cast<float>(scaler_->scale()) : 1.0f; }

  // Call at the start of a step: the weights then belong to no step until count_step() or note_unchanged().
  void begin_step() { counts_are_of_weights_ = false; }
  // Call when the step has left the weights unchanged.
  void note_unchanged() { counts_are_of_weights_ = true; }
  // Call when the step has ended with this many samples. A skipped step left the weights unchanged. Throws as
  // LossScaler::update() does.
  void count_step(uint64_t samples, bool skipped);
  bool counts_are_of_weights() const { return counts_are_of_weights_; }

  // Returns the facts for a saved state. Throws Error(cancelled) when the weights belong to no step.
  CheckpointInfo info() const;
  // Goes on from the end of `saved`, which lies in `where`, and names the changed settings in `log`. Throws
  // Error(corrupt) when its loss scale is meaningless, and Error(config) when its gradient groups are others.
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
