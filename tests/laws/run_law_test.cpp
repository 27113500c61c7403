// Law 1 for whole runs of the trainer: tokenized text in epochs, every kind of training, and a break in the
// middle of an epoch after which everything about placement is different. Losses, parameters and optimizer
// states must be those of a run on the device that was never interrupted, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <terrace/reference/data/token_cache.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/checkpoint/state_set.h>
#include <terrace/runtime/config/tier_paths.h>

#include "support/offloaders.h"
#include "support/scratch_folder.h"

namespace terrace::laws::run_law_test {
namespace {

constexpr uint32_t kContext = 32;
constexpr uint64_t kRunSteps = 7, kBreak = 4;

struct Kind {
  const char* name;
  ModelFamily family;
  const char* precision;  // "bf16", "fp16" or "fp32"
  const char* lora;       // values of terrace.lora and terrace.frozen, or empty
  const char* frozen;
  const char* optimizer = R"({"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.1}})";
  const char* moments = "auto";  // terrace.state_type
  const char* clipping = "1.0";
  const char* quantize_base = "none";
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.name;
}

constexpr Kind kKinds[] = {
    {"gpt2_bf16", ModelFamily::gpt2, "bf16", "", ""},
    // An initial scale that overflows: some steps are skipped before and none after the break.
    {"llama_fp16", ModelFamily::llama, "fp16", "", ""},
    {"llama_lora", ModelFamily::llama, "bf16", R"({"rank": 4, "alpha": 8, "targets": ["*_proj"]})", ""},
    {"llama_nf4", ModelFamily::llama, "bf16", R"({"rank": 4, "alpha": 8, "targets": ["*_proj"]})", "",
     R"({"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.1}})", "auto", "1.0", "nf4"},
    {"gpt2_int8", ModelFamily::gpt2, "fp32", R"({"rank": 4, "alpha": 8})", "", R"({"type": "AdamW"})", "bf16",
     "1.0", "int8"},
    {"qwen2_frozen", ModelFamily::qwen2, "fp32", "", R"(["*embed_tokens*", "*.layers.0.*"])"},
    {"qwen3_lora", ModelFamily::qwen3, "bf16", R"({"rank": 4, "alpha": 8, "targets": ["q_proj"]})", ""},
    // Without clipping, so that during backward gradients are applied as they land.
    {"gpt2_adagrad", ModelFamily::gpt2, "bf16", "", "", R"({"type": "Adagrad"})", "bf16", "0"},
    {"llama_lion", ModelFamily::llama, "bf16", "", "", R"({"type": "Lion", "params": {"lr": 2e-4}})", "auto",
     "0"},
    {"gpt2_sgd", ModelFamily::gpt2, "fp32", "", "",
     R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})", "auto", "0"},
    {"gpt2_muon", ModelFamily::gpt2, "bf16", "", "", R"({"type": "Muon", "params": {"weight_decay": 0.1}})"},
    {"qwen3_muon", ModelFamily::qwen3, "fp32", R"({"rank": 4, "alpha": 8, "targets": ["q_proj"]})", "",
     R"({"type": "Muon", "params": {"adjust_lr_fn": "match_rms_adamw", "lr": 1e-3}})", "int8"},
    {"gpt2_codes", ModelFamily::gpt2, "bf16", "", "",
     R"({"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.1}})", "int8"},
};

struct Placing {
  const char* parameters;
  const char* states;
  const char* device_memory;
  const char* host_memory;
  const char* chunk_elements;
  const char* policy;
  bool activations_on_host;
  const char* update;
  bool compact;  // where parameters are bf16
};

constexpr Placing kOnDevice{"none", "none", "64MiB", "64MiB", "65536", "opt", false, "auto", false};
constexpr Placing kPlacings[] = {
    {"cpu", "nvme", "5MiB", "8MiB", "4096", "gemini", true, "next_forward", true},
    {"nvme", "nvme", "6MiB", "6MiB", "8192", "opt", false, "during_backward", false},
    {"nvme", "cpu", "8MiB", "16MiB", "16384", "patrickstar", true, "next_forward", true},
    {"nvme", "nvme", "6MiB", "8MiB", "4096", "patrickstar", false, "auto", true},
};

std::string config_text(const Kind& kind, const Placing& placing, const std::string& folder) {
  std::string text = R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
    "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 20, "warmup_num_steps": 3}},)";
  text +=
      std::string(R"("optimizer": )") + kind.optimizer + R"(, "gradient_clipping": )" + kind.clipping + ",";
  if (std::string(kind.precision) == "bf16") {
    text += R"("bf16": {"enabled": true},)";
  }
  if (std::string(kind.precision) == "fp16")
    text += R"("fp16": {"enabled": true, "initial_scale_power": 20, "hysteresis": 1},)";
  if (placing.activations_on_host) text += R"("activation_checkpointing": {"cpu_checkpointing": true},)";
  // Muon updates after backward, and says so where another mode is asked for.
  const bool has_one_mode = std::string_view(kind.optimizer).find("Muon") != std::string_view::npos;
  const auto role = [&](const char* key, const char* device) {
    return std::string("\"") + key + R"(": {"device": ")" + device + "\"" +
           (std::string(device) == "nvme" ? R"(, "nvme_path": ")" + folder + "\"" : "") + "}";
  };
  text += R"("zero_optimization": {"stage": 3, )" + role("offload_param", placing.parameters) + ", " +
          role("offload_optimizer", placing.states) + "},";
  text += std::string(R"("terrace": {"threads": 2, "device_memory": ")") + placing.device_memory +
          R"(", "host_memory": ")" + placing.host_memory + R"(", "chunk_elements": )" +
          placing.chunk_elements + R"(, "policy": ")" + placing.policy + R"(", "update": ")" +
          (has_one_mode ? "auto" : placing.update) + "\"";
  if (placing.compact && std::string(kind.precision) == "bf16") text += R"(, "compact_state": true)";
  text += std::string(R"(, "state_type": ")") + kind.moments + "\"";
  if (*kind.lora != 0) text += std::string(R"(, "lora": )") + kind.lora;
  text += std::string(R"(, "quantize_base": ")") + kind.quantize_base + "\"";
  if (*kind.frozen != 0) text += std::string(R"(, "frozen": )") + kind.frozen;
  return text + "}}";
}

// What a run leaves behind, as bits.
struct Trace {
  std::vector<uint64_t> losses;
  uint64_t skipped = 0;
  std::vector<std::byte> parameters, records;
};

class RunLaw : public ::testing::TestWithParam<Kind> {
 protected:
  RunLaw() {
    std::ofstream text(folder_.path() / "text.txt");
    for (int line = 0; line < 15; ++line)
      text << "The " << line << "th line says that " << line * line << " is the square of " << line << ".\n";
    text.close();
    const Tokenizer tokenizer =
        Tokenizer::load(TERRACE_TEST_SOURCES "/reference/data/tokenizers/llama3.json");
    OpenTokens tokens;
    tokens.train =
        tokenize_cached(TextFiles({folder_.path() / "text.txt"}), &tokenizer, folder_.path() / "cache", log_);
    data_ = std::make_unique<TrainingData>(std::move(tokens), TrainingDataOptions{kContext, 42, 0.2});
  }

  TrainerOptions options(const Placing& placing) const {
    TrainerOptions options;
    options.config =
        parse_train_config(config_text(GetParam(), placing, folder_.path().string()), "ds_config.json");
    options.steps = kRunSteps;
    options.model.family = GetParam().family;
    options.model.layers = 2, options.model.heads = 4, options.model.width = 48;
    options.model.context = kContext;
    options.model.vocabulary = data_->vocabulary();
    if (GetParam().family == ModelFamily::gpt2) return options;
    options.model.key_value_heads = 2, options.model.hidden = 96;
    options.model.attention_bias = GetParam().family == ModelFamily::qwen2;
    options.model.output_bias = options.model.mlp_bias = options.model.tied_embeddings = false;
    return options;
  }

  void train(Trainer& trainer, uint64_t until, Trace& trace) {
    while (trainer.completed_steps() < until) {
      const StepReport report = trainer.step();
      trace.losses.push_back(std::bit_cast<uint64_t>(report.loss));
      trace.skipped += report.skipped ? 1 : 0;
      if (report.step % 3 == 0) trace.losses.push_back(std::bit_cast<uint64_t>(trainer.evaluate(2)));
    }
  }

  void finish(Trainer& trainer, Trace& trace) {
    trace.parameters = testing::parameters_of(trainer.offloader(), trainer.space());
    trace.records = testing::records_of(trainer.offloader());
  }

  ScratchFolder folder_;
  MemoryLog log_;
  std::unique_ptr<TrainingData> data_;
};

TEST_P(RunLaw, ABreakInMidEpochAndAnotherPlacementChangeNothing) {
  Trace whole;
  {
    Trainer trainer(options(kOnDevice), *data_, log_);
    train(trainer, kRunSteps, whole);
    finish(trainer, whole);
  }
  const uint64_t epoch = data_->sample_count();
  ASSERT_NE(4 * kBreak % epoch, 0u) << "the break is not in mid-epoch";
  ASSERT_GT(4 * kRunSteps, epoch) << "there is no second epoch";
  if (std::string(GetParam().precision) == "fp16") {
    EXPECT_GT(whole.skipped, 0u);
    EXPECT_LT(whole.skipped, kBreak);
  }

  const Placing* before = &kOnDevice;
  for (const Placing& after : kPlacings) {
    const std::filesystem::path checkpoints =
        folder_.path() / (std::string("checkpoints-") + after.update + after.policy);
    Trace broken;
    {
      Trainer trainer(options(*before), *data_, log_);
      train(trainer, kBreak, broken);
      trainer.save({checkpoints, log_});
    }
    Trainer trainer(options(after), *data_, log_);
    trainer.resume(checkpoints);
    train(trainer, kRunSteps, broken);
    finish(trainer, broken);
    EXPECT_EQ(broken.losses, whole.losses) << after.parameters << " " << after.states;
    EXPECT_EQ(broken.skipped, whole.skipped);
    EXPECT_TRUE(broken.parameters == whole.parameters) << after.parameters << " " << after.states;
    EXPECT_TRUE(broken.records == whole.records) << after.parameters << " " << after.states;
    before = &after;
  }
}

// Each step by a trainer of its own, which finds another placement and another mode of the update.
TEST_P(RunLaw, ABreakAfterEveryStepChangesNothing) {
  Trace whole;
  {
    Trainer trainer(options(kOnDevice), *data_, log_);
    train(trainer, kRunSteps, whole);
    finish(trainer, whole);
  }
  const std::filesystem::path checkpoints = folder_.path() / "checkpoints";
  Trace broken;
  for (uint64_t step = 1; step <= kRunSteps; ++step) {
    Trainer trainer(options(kPlacings[step % std::size(kPlacings)]), *data_, log_);
    if (step > 1) trainer.resume(checkpoints);
    train(trainer, step, broken);
    trainer.save({checkpoints, log_});
    if (step == kRunSteps) finish(trainer, broken);
  }
  EXPECT_EQ(broken.losses, whole.losses);
  EXPECT_TRUE(broken.parameters == whole.parameters);
  EXPECT_TRUE(broken.records == whole.records);
}

// Each step by a trainer of its own, which reads the commit of the one before in the other of two places.
TEST_P(RunLaw, ACommitThatGoesOnInTheOtherFormAfterEveryStepChangesNothing) {
  Trace whole;
  {
    Trainer trainer(options(kOnDevice), *data_, log_);
    train(trainer, kRunSteps, whole);
    finish(trainer, whole);
  }
  Trace broken;
  for (uint64_t step = 1; step <= kRunSteps; ++step) {
    const bool is_second = step % 2 == 0;
    TrainerOptions given =
        options(kPlacings[is_second ? 1 : 3]);  // the one of plain, the other of compact state
    given.config.placement.tier_name = tier_name_of({.is_second = is_second});
    const std::vector<StateSet> sets = find_state_sets(tier_paths(given.config.placement));
    ASSERT_EQ(sets.size(), step > 1 ? 1u : 0u);
    Trainer trainer(given, *data_, log_);
    if (step > 1) trainer.resume(sets.front());
    train(trainer, step, broken);
    trainer.begin_commit();
    ASSERT_EQ(trainer.finish_commit().commit_step, step);
    if (step > 1) HeldSet(sets.front(), log_).remove();
    if (step == kRunSteps) finish(trainer, broken);
  }
  EXPECT_EQ(broken.losses, whole.losses);
  EXPECT_TRUE(broken.parameters == whole.parameters);
  EXPECT_TRUE(broken.records == whole.records);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RunLaw, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace terrace::laws::run_law_test
