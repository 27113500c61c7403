#include <terrace/reference/run_identity.h>

#include <fmt/format.h>

#include <string>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/reference/model/weights/architecture.h>
#include <terrace/runtime/config/run_settings.h>

namespace terrace {
namespace {

// The names in CheckpointInfo::position; docs/checkpoint_format.md says what they hold.
constexpr const char* kTrainTokens = "train_tokens";
constexpr const char* kContext = "context";

// Samples are numbered by the seed and cut by what is compared here; then the count of those consumed says
// where to go on, however they are cut into micro-batches.
void require_same_data(const std::filesystem::path& folder, const CheckpointInfo& saved,
                       const CheckpointInfo& mine) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorKind::config, {"cannot resume: the data or the seed differ from those of the checkpoint",
                                    folder.string(), reason,
                                    "give the same " + Option::data + ", " + Option::validation_fraction +
                                        ", " + Option::context + " and " + Option::seed + ", or start anew"});
  };
  const auto value = [&](const char* name) {
    const auto found = saved.position.find(name);
    if (found == saved.position.end()) refuse(fmt::format("it does not say its \"{}\"", name));
    return found->second;
  };
  // A loop in PyTorch has its own data and says no more than how many samples it was.
  if (!saved.position.contains(kDataFingerprint) && !saved.position.contains(kContext)) {
    static_cast<void>(value(kConsumedSamples));
    return;
  }
  if (saved.seed != mine.seed) refuse(fmt::format("saved with seed {}, now {}", saved.seed, mine.seed));
  if (value(kContext) != mine.position.at(kContext)) {
    refuse(
        fmt::format("saved with samples of {} tokens, now {}", value(kContext), mine.position.at(kContext)));
  }
  if (value(kDataFingerprint) != mine.position.at(kDataFingerprint)) refuse("the files are other ones");
  if (value(kTrainTokens) != mine.position.at(kTrainTokens)) {
    refuse(fmt::format("saved with {} tokens to train on, now {}: another part is held out",
                       value(kTrainTokens), mine.position.at(kTrainTokens)));
  }
  static_cast<void>(value(kConsumedSamples));
}

// As the configuration has it, with its quotes. Checkpoints of before there were others do not say it.
std::string optimizer_of(const CheckpointInfo& info) {
  const auto found = info.settings.find("optimizer.type");
  return found == info.settings.end() ? "\"AdamW\"" : found->second;
}

void require_same_optimizer(const std::filesystem::path& folder, const CheckpointInfo& saved,
                            const CheckpointInfo& mine) {
  const std::string before = optimizer_of(saved);
  const std::string now = optimizer_of(mine);
  const auto is_adam = [](const std::string& type) { return type == "\"Adam\"" || type == "\"AdamW\""; };
  if (before == now || (is_adam(before) && is_adam(now))) return;  // these two have the same moments
  throw Error(
      ErrorKind::config,
      {"cannot resume: the optimizer differs from that of the checkpoint", folder.string(),
       fmt::format("saved with optimizer.type {}, now {}: the moments of one mean nothing to the other",
                   before, now),
       "give the same optimizer, or begin anew from the weights (`terrace export`, then " + Option::weights +
           ")"});
}

}  // namespace

CheckpointInfo run_identity(const TrainConfig& config, uint64_t steps, const Model& model,
                            const FlatSpace& space, const TrainingData& data) {
  CheckpointInfo info;
  info.model = model.description();
  info.architecture = architecture_text(model);
  info.tensor_hash = hash_of_tensors(space);
  info.type = model.options().type;
  info.seed = model.options().seed;
  info.position = {{kDataFingerprint, data.fingerprint()},
                   {kTrainTokens, data.train_token_count()},
                   {kContext, model.config().context}};
  info.settings = settings_of(config, steps);
  return info;
}

void require_same_training(const CheckpointInfo& saved, const std::filesystem::path& where,
                           const CheckpointInfo& mine) {
  require_same_data(where, saved, mine);
  require_same_optimizer(where, saved, mine);
}

}  // namespace terrace
