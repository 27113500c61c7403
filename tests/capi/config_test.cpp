// terrace_run.h: the configuration of a run, its learning rates and its loss scale.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <string>

#include <terrace_run.h>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::capi_config_test {
namespace {

using capi::expect_kind;
using capi::is_well;
using ::testing::HasSubstr;

static_assert(sizeof(terrace_config_options) == 56);
static_assert(offsetof(terrace_config_options, brings_optimizer) == 4);
static_assert(offsetof(terrace_config_options, path) == 8);
static_assert(offsetof(terrace_config_options, text) == 16);
static_assert(offsetof(terrace_config_options, total_steps) == 24);
static_assert(offsetof(terrace_config_options, brings_schedule) == 32);
static_assert(offsetof(terrace_config_options, met) == 48);
static_assert(sizeof(terrace_scheduled) == 32);
static_assert(offsetof(terrace_scheduled, lr) == 8);
static_assert(sizeof(terrace_loss_scale_state) == 40);
static_assert(offsetof(terrace_loss_scale_state, scale) == 8);
static_assert(offsetof(terrace_loss_scale_state, skipped_in_a_row) == 32);

// A configuration of a text.
class Config {
 public:
  explicit Config(const char* text) {
    terrace_config_options options = TERRACE_INIT(terrace_config_options);
    options.text = text;
    options.total_steps = 10;
    EXPECT_TRUE(is_well(terrace_config_read(&options, &config_)));
  }
  ~Config() { terrace_config_free(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  terrace_config* get() const { return config_; }

 private:
  terrace_config* config_ = nullptr;
};

TEST(CConfig, IsReadFromAFileOrAText) {
  const ScratchFolder folder;
  const std::string path = (folder.path() / "ds.json").string();
  std::ofstream(path) << "{\"train_batch_size\": 8, // comment\n \"gradient_clipping\": 0.5,}";
  terrace_config_options options = TERRACE_INIT(terrace_config_options);
  options.path = path.c_str();
  terrace_config* config = nullptr;
  ASSERT_TRUE(is_well(terrace_config_read(&options, &config)));
  const char* json = nullptr;
  EXPECT_TRUE(is_well(terrace_config_json(config, &json)));
  EXPECT_THAT(json, HasSubstr("\"gradient_clipping\": 0.5"));
  terrace_config_free(config);
  options.text = "{\"stage\": 1}";
  terrace_error* error = terrace_config_read(&options, &config);
  terrace_error_parts parts = TERRACE_INIT(terrace_error_parts);
  terrace_error_get(error, &parts);
  EXPECT_EQ(parts.subject, path + ":1:2: stage");
  EXPECT_THAT(parts.reason, HasSubstr("unknown key"));
  terrace_error_free(error);
  options.document_only = 1;
  ASSERT_TRUE(is_well(terrace_config_read(&options, &config)));
  EXPECT_TRUE(is_well(terrace_config_json(config, &json)));
  EXPECT_STREQ(json, "{\"stage\": 1}");
  terrace_config_free(config);
  EXPECT_TRUE(is_well(terrace_config_keys(&json)));
  EXPECT_THAT(json, HasSubstr("{\"key\": \"train_batch_size\""));
}

TEST(CConfig, SchedulesTheRateOfEachGroup) {
  const Config linear("{\"scheduler\": {\"type\": \"linear\"}}");
  terrace_scheduled scheduled = TERRACE_INIT(terrace_scheduled);
  EXPECT_TRUE(is_well(terrace_config_scheduled(linear.get(), 5, 7, 2.0, &scheduled)));
  EXPECT_EQ(scheduled.lr, 1.0);
  EXPECT_EQ(scheduled.sets_betas, 0u);
  const Config none("{}");
  EXPECT_TRUE(is_well(terrace_config_scheduled(none.get(), 5, 7, 2.0, &scheduled)));
  EXPECT_EQ(scheduled.lr, 2.0);
  const Config cycle(
      "{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": [0.25, 0.5], "
      "\"cycle_max_lr\": 1}}}");
  EXPECT_TRUE(is_well(terrace_config_scheduled(cycle.get(), 0, 1, 2.0, &scheduled)));
  EXPECT_EQ(scheduled.lr, 0.5);
  EXPECT_EQ(scheduled.sets_betas, 1u);
  EXPECT_EQ(scheduled.beta1, 0.8);
  EXPECT_EQ(scheduled.beta2, 0.99);
  expect_kind(TERRACE_CONFIG, terrace_config_scheduled(cycle.get(), 0, 2, 2.0, &scheduled));
}

TEST(CConfig, ScalesTheLossOfFp16) {
  const Config fp16("{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 4, \"hysteresis\": 1}}");
  terrace_loss_scale* scale = nullptr;
  ASSERT_TRUE(is_well(terrace_loss_scale_create(fp16.get(), &scale)));
  terrace_loss_scale_state state = TERRACE_INIT(terrace_loss_scale_state);
  EXPECT_TRUE(is_well(terrace_loss_scale_note(scale, 1)));
  EXPECT_TRUE(is_well(terrace_loss_scale_get(scale, &state)));
  EXPECT_EQ(state.scale, 8.0);
  EXPECT_EQ(state.skipped_steps, 1u);
  EXPECT_EQ(state.skipped_in_a_row, 1u);
  state.scale = 1;
  EXPECT_TRUE(is_well(terrace_loss_scale_restore(scale, &state)));
  expect_kind(TERRACE_CANCELLED, terrace_loss_scale_note(scale, 1));
  state.scale = -1;
  expect_kind(TERRACE_CORRUPT, terrace_loss_scale_restore(scale, &state));
  terrace_loss_scale_free(scale);
  const Config fp32("{}");
  ASSERT_TRUE(is_well(terrace_loss_scale_create(fp32.get(), &scale)));
  EXPECT_TRUE(is_well(terrace_loss_scale_note(scale, 1)));
  EXPECT_TRUE(is_well(terrace_loss_scale_get(scale, &state)));
  EXPECT_EQ(state.scale, 1.0);
  terrace_loss_scale_free(scale);
}

TEST(CConfig, CountsTheBatchOverTheRanks) {
  const auto read = [](const char* text, uint32_t ranks) {
    terrace_config_options options = TERRACE_INIT(terrace_config_options);
    options.text = text;
    options.ranks = ranks;
    terrace_config* config = nullptr;
    const char* json = "";
    if (terrace_error* failure = terrace_config_read(&options, &config)) {
      const std::string refused = terrace_error_text(failure);
      terrace_error_free(failure);
      return refused;
    }
    is_well(terrace_config_json(config, &json));
    const std::string resolved = json;
    terrace_config_free(config);
    return resolved;
  };
  constexpr const char* kBatch = "{\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 2}";
  EXPECT_NE(read(kBatch, 0).find("\"gradient_accumulation_steps\": 6"), std::string::npos);
  EXPECT_NE(read(kBatch, 3).find("\"gradient_accumulation_steps\": 2"), std::string::npos);
  EXPECT_NE(read(kBatch, 4).find("4 ranks cannot share evenly"), std::string::npos);
  constexpr const char* kSteps = "{\"gradient_accumulation_steps\": 3}";
  EXPECT_NE(read(kSteps, 2).find("\"train_batch_size\": 6"), std::string::npos);
}

TEST(CConfig, AnswersToWhateverIsGiven) {
  terrace_config_options options = TERRACE_INIT(terrace_config_options);
  terrace_config* config = nullptr;
  const char* json = nullptr;
  terrace_scheduled scheduled = TERRACE_INIT(terrace_scheduled);
  terrace_loss_scale* scale = nullptr;
  terrace_loss_scale_state state = TERRACE_INIT(terrace_loss_scale_state);
  expect_kind(TERRACE_MISUSE, terrace_config_read(nullptr, &config));
  expect_kind(TERRACE_MISUSE, terrace_config_read(&options, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_config_read(&options, &config));  // neither a path nor a text
  options.path = "/nowhere/ds.json";
  expect_kind(TERRACE_CONFIG, terrace_config_read(&options, &config));
  for (const char* text : {"", "[]", "{\"a\"", "\xFF"}) {
    options.text = text;
    expect_kind(TERRACE_CONFIG, terrace_config_read(&options, &config));
  }
  EXPECT_EQ(config, nullptr);
  const Config whole("{}");
  expect_kind(TERRACE_MISUSE, terrace_config_json(nullptr, &json));
  expect_kind(TERRACE_MISUSE, terrace_config_json(whole.get(), nullptr));
  expect_kind(TERRACE_MISUSE, terrace_config_keys(nullptr));
  expect_kind(TERRACE_MISUSE, terrace_config_scheduled(nullptr, 0, 0, 1.0, &scheduled));
  expect_kind(TERRACE_MISUSE, terrace_config_scheduled(whole.get(), 0, 0, 1.0, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_loss_scale_create(nullptr, &scale));
  expect_kind(TERRACE_MISUSE, terrace_loss_scale_create(whole.get(), nullptr));
  expect_kind(TERRACE_MISUSE, terrace_loss_scale_note(nullptr, 1));
  expect_kind(TERRACE_MISUSE, terrace_loss_scale_get(nullptr, &state));
  expect_kind(TERRACE_MISUSE, terrace_loss_scale_restore(nullptr, &state));
  terrace_config_free(nullptr);
  terrace_loss_scale_free(nullptr);
}

}  // namespace
}  // namespace terrace::capi_config_test
