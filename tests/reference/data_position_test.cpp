// A run that is taken up again, also with other micro-batches, goes on with the sample at which it stopped.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/reference/trainer.h>

#include "support/scratch_folder.h"

namespace terrace::data_position_test {
namespace {

constexpr uint32_t kContext = 8;

// Counts up, and writes down where windows begin.
class RecordedTokens final : public TokenSource {
 public:
  explicit RecordedTokens(std::vector<uint64_t>& begins) : begins_(begins) {}
  uint64_t token_count() const override { return 400; }
  void read(uint64_t first, std::span<int32_t> tokens) const override {
    if (tokens.size() == 1) begins_.push_back(first);  // the first token of a window
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((first + i) % 13);
  }
  uint32_t vocabulary() const override { return 13; }
  uint64_t fingerprint() const override { return 1; }
  std::string description() const override { return "numbers"; }
  std::filesystem::path path() const override { return "numbers"; }

 private:
  std::vector<uint64_t>& begins_;
};

struct Outcome {
  std::vector<uint64_t> begins;  // of the samples, in the order in which they were trained on
  std::vector<double> losses;
};

TrainerOptions options_of(uint32_t micro_batch, uint32_t accumulation) {
  TrainerOptions options;
  const ConfigOverride overrides[] = {
      {"train_micro_batch_size_per_gpu", std::to_string(micro_batch), "a test"},
      {"gradient_accumulation_steps", std::to_string(accumulation), "a test"},
      {"terrace.threads", "1", "a test"},
      {"terrace.device_memory", "16MiB", "a test"},
      {"terrace.host_memory", "64MiB", "a test"}};
  options.config = default_train_config(overrides);
  options.model = model_preset("gpt2");
  options.model.layers = 1;
  options.model.heads = 2;
  options.model.width = 16;
  options.model.context = kContext;
  options.model.vocabulary = 13;
  return options;
}

// Trains `steps` steps, from where `resume` stopped when that is given, and saves to `save` when that is.
Outcome train(const TrainerOptions& options, uint64_t steps, const std::filesystem::path& resume = {},
              const std::filesystem::path& save = {}) {
  Outcome run;
  OpenTokens tokens;
  tokens.train = std::make_unique<RecordedTokens>(run.begins);
  const TrainingData data(std::move(tokens),
                          {kContext, options.config.terrace.seed, /*validation_fraction=*/0});
  MemoryLog log;
  Trainer trainer(options, data, log);
  if (!resume.empty()) trainer.resume(resume);
  for (uint64_t i = 0; i < steps; ++i) run.losses.push_back(trainer.step().loss);
  EXPECT_EQ(trainer.consumed_samples() % options.config.batch.micro_batch_size, 0u);
  if (!save.empty()) trainer.save({save, log});
  return run;
}

TEST(DataPosition, GoesOnInMidEpochWithAnotherSplitIntoMicroBatches) {
  const Outcome whole = train(options_of(2, 3), 12);  // 72 samples: an epoch has 49
  ASSERT_EQ(whole.begins.size(), 72u);
  const ScratchFolder folder;
  const Outcome first = train(options_of(2, 3), 4, {}, folder.path());
  for (const auto& [micro_batch, accumulation] : {std::pair{2, 3}, {3, 2}, {1, 6}, {6, 1}, {4, 1}}) {
    const auto samples = static_cast<uint64_t>(micro_batch * accumulation);
    const Outcome second =
        train(options_of(static_cast<uint32_t>(micro_batch), static_cast<uint32_t>(accumulation)),
              48 / samples, folder.path());
    std::vector<uint64_t> begins = first.begins;
    begins.insert(begins.end(), second.begins.begin(), second.begins.end());
    EXPECT_EQ(begins, whole.begins) << micro_batch << " x " << accumulation;
    if (samples != 6) continue;
    for (size_t i = 0; i < second.losses.size(); ++i)
      EXPECT_NEAR(second.losses[i], whole.losses[4 + i], 2e-3) << micro_batch << " x " << accumulation;
  }
}

TEST(DataPosition, RefusesACheckpointOfOtherData) {
  const ScratchFolder folder;
  train(options_of(2, 1), 1, {}, folder.path());
  TrainerOptions other = options_of(2, 1);
  other.config.terrace.seed = 43;
  try {
    train(other, 1, folder.path());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::config));
    EXPECT_EQ(error.parts().reason, "saved with seed 42, now 43");
  }
}

}  // namespace
}  // namespace terrace::data_position_test
