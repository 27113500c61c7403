// The identity of a run in its saved states: its model, tensors, data, seed and settings. A run goes on from
// a saved state only if these agree.
#pragma once

#include <filesystem>

#include <terrace/reference/data/training_data.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// The name of the count of samples in CheckpointInfo::position, the place in the data at which a run goes on.
inline constexpr const char* kConsumedSamples = "consumed_samples";
// The name of what tells the data of a run from others.
inline constexpr const char* kDataFingerprint = "data_fingerprint";

// Returns the facts of a run of `steps` steps that has not begun: without an id, and at step 0.
CheckpointInfo run_identity(const TrainConfig& config, uint64_t steps, const Model& model,
                            const FlatSpace& space, const TrainingData& data);

// Throws Error(config) unless the state saved in `where` was trained on the data of `mine`, with its seed and
// an optimizer whose moments it can use. The reader of the tensors compares the tensors.
void require_same_training(const CheckpointInfo& saved, const std::filesystem::path& where,
                           const CheckpointInfo& mine);

}  // namespace terrace
