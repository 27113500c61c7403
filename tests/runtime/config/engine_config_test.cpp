// A configuration as the engine for Python takes it.
#include <terrace/runtime/config/engine_config.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include <terrace/base/error.h>
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/config/schema/engine_keys.h>
#include <terrace/runtime/config/schema/schema.h>

namespace terrace::engine_config_test {
namespace {

using ::testing::HasSubstr;

EngineConfig parse(std::string_view text, const EngineConfigOptions& options = {}) {
  return parse_engine_config(text, "ds.json", options);
}

ErrorParts refusal(std::string_view text, std::string_view name = "ds.json") {
  try {
    parse_engine_config(text, name, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.parts();
  }
  return {};
}

const JsonNode& member(const JsonNode& object, std::string_view key) {
  static const JsonNode kMissing;
  const JsonNode* const found = object.find(key);
  return found == nullptr ? kMissing : *found;
}

// A key that is new in the schema has a place in the engine or a row in its table.
TEST(EngineConfig, TakesEveryHonouredKeyOrSaysThatItDoesNot) {
  std::set<std::string> taken;
  for (const char* chosen :
       {R"("scheduler": {"type": "WarmupDecayLR"})", R"("scheduler": {"type": "WarmupCosineLR"})",
        R"("scheduler": {"type": "LRRangeTest"})", R"("optimizer": {"type": "SGD"})",
        R"("optimizer": {"type": "Muon"})", R"("terrace": {"micro_batches": 2})",
        R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}})"}) {
    const EngineConfig read = parse(std::string("{") + chosen + "}", {.total_step_count = 9});
    for (const ResolvedValue& value : read.config.resolved) taken.insert(value.key);
  }
  for (const SchemaKey& of_program : schema()) {
    const SchemaKey& row = row_for(ConfigUser::engine, of_program);
    if (has_subkeys(row)) continue;
    const EngineKey* const key = engine_key(row.path());
    const bool is_other =
        key != nullptr && (key->effect == EngineEffect::idle || key->effect == EngineEffect::refused);
    EXPECT_EQ(taken.contains(row.path()), row.effect == KeyEffect::honoured && !is_other) << row.path();
  }
}

TEST(EngineConfig, KnowsTheKeysOfItsTable) {
  for (const std::string_view path : {"terrace.lora", "terrace.lora.rank", "aio", "aio.queue_depth"})
    EXPECT_NE(engine_key(path), nullptr) << path;
  EXPECT_EQ(engine_key("aio.use_gds")->effect, EngineEffect::refused);
  for (const std::string_view path : {"terrace", "aiox", "terrace.loras", "optimizer.params.lr"})
    EXPECT_EQ(engine_key(path), nullptr) << path;
  EXPECT_EQ(row_for(ConfigUser::program, *find_path("gradient_clipping")).default_text, "1.0");
  EXPECT_EQ(parse("{}").config.gradient_clipping, 0);
  EXPECT_EQ(row_for(ConfigUser::engine, *find_path("gradient_clipping")).default_text, "0");
}

// What is not given is the service's to know.
TEST(EngineConfig, HasTheServicesThatTheProgramLeavesOut) {
  const EngineConfig read = parse(
      R"({"wandb": {"enabled": true, "team": "t"}, "monitor": {"comet": {"online": false, "mode": "GET"}}})");
  const JsonNode root = parse_json(read.json, "out");
  const JsonNode& values = member(root, "values");
  EXPECT_TRUE(member(values, "wandb.enabled").boolean);
  EXPECT_EQ(member(values, "wandb.project").text, "deepspeed");
  EXPECT_EQ(member(values, "wandb.team").text, "t");
  EXPECT_TRUE(member(values, "wandb.group").is(JsonNode::Kind::null));
  EXPECT_FALSE(member(values, "comet.enabled").boolean);
  EXPECT_EQ(member(values, "comet.samples_log_interval").number, 100);
  EXPECT_EQ(member(values, "comet.mode").text, "get");
  EXPECT_EQ(json_text(member(values, "comet.online")), "false");
  EXPECT_TRUE(
      member(member(parse_json(parse("{}").json, "out"), "values"), "comet.online").is(JsonNode::Kind::null));
  EXPECT_TRUE(member(root, "without_effect").items.empty());
  EXPECT_EQ(refusal(R"({"comet": {"mode": "creat"}})").advice, "did you mean \"create\"?");
}

TEST(EngineConfig, GivesWhatItHasResolvedAsJson) {
  const EngineConfig read = parse(
      R"({"train_batch_size": "auto", "bf16": {"enabled": true}, "steps_per_print": 5,
          "zero_optimization": {"stage": 2, "cpu_offload": true, "contiguous_gradients": true}, "fp16": {}})",
      {.brings_optimizer = true});
  const JsonNode root = parse_json(read.json, "out");
  EXPECT_EQ(member(member(root, "values"), "zero_optimization.offload_optimizer.device").text, "cpu");
  EXPECT_EQ(member(member(root, "values"), "optimizer.params.lr").number, 1e-3);
  EXPECT_EQ(member(member(root, "written"), "zero_optimization.offload_optimizer.device").text,
            "zero_optimization.cpu_offload");
  EXPECT_EQ(json_text(member(root, "auto")), R"(["train_batch_size"])");
  EXPECT_EQ(json_text(member(root, "sections")), R"(["bf16", "fp16", "zero_optimization"])");
  ASSERT_EQ(member(root, "without_effect").items.size(), 2u);
  EXPECT_THAT(member(root, "without_effect").items[0].text,
              HasSubstr("zero_optimization.contiguous_gradients: Gradients always land"));
  EXPECT_EQ(member(root, "without_effect").items[1].text,
            "steps_per_print: the program alone has a use for it");
  ASSERT_EQ(member(root, "old_names").items.size(), 1u);
  EXPECT_EQ(member(member(root, "store"), "precision").text, "bf16");
  EXPECT_EQ(member(member(root, "store"), "optimizer").text, "adamw");
}

TEST(EngineConfig, GivesTheRatesAndSettingsOfMuon) {
  const EngineConfig read = parse(R"({"optimizer": {"type": "Muon", "params": {"muon_lr": 0.5}}})");
  const JsonNode root = parse_json(read.json, "out");
  const JsonNode& values = member(root, "values");
  const auto number = [&](const std::string& key) {
    return member(values, "optimizer.params." + key).number;
  };
  EXPECT_EQ(member(member(root, "store"), "optimizer").text, "muon");
  EXPECT_EQ(number("muon_lr"), 0.5);
  EXPECT_EQ(number("adam_lr"), 3e-4);
  EXPECT_EQ(number("momentum"), 0.95);
  EXPECT_EQ(number("eps"), 1e-10);
  EXPECT_EQ(number("ns_steps"), 5);
  EXPECT_EQ(number("weight_decay"), 0);
  EXPECT_TRUE(member(values, "optimizer.params.nesterov").boolean);
  EXPECT_EQ(member(values, "optimizer.params.adjust_lr_fn").text, "original");
  EXPECT_EQ(member(values, "optimizer.params.betas").items.size(), 2u);
  EXPECT_EQ(refusal(R"({"optimizer": {"type": "Muon"}, "terrace": {"update": "next_forward"},
                        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})")
                .subject,
            "ds.json:1:45: terrace.update");
}

TEST(EngineConfig, MakesUpWhatATrainerBringsUnlessTheLoopBringsIt) {
  constexpr std::string_view text = R"({"train_batch_size": "auto"})";
  EXPECT_EQ(refusal(text).subject, "scheduler.params.total_num_steps");
  const EngineConfig made_up = parse(text, {.total_step_count = 10});
  EXPECT_EQ(made_up.config.schedule.kind, LrScheduleKind::linear);
  EXPECT_EQ(made_up.config.schedule.total_step_count, 10u);
  EXPECT_EQ(parse(text, {.brings_optimizer = true}).config.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(parse(text, {.brings_schedule = true}).config.schedule.kind, LrScheduleKind::constant);
}

TEST(EngineConfig, PlacesActivationsInFoldersOfTheirOwnOrOfStates) {
  const auto paths = [](const std::string& offload, const std::string& section) {
    const EngineConfig read = parse(R"({"terrace": {"offload_activations": ")" + offload +
                                        R"("}, "zero_optimization": {"stage": 3, )" + section + "}}",
                                    {.brings_optimizer = true});
    const JsonNode root = parse_json(read.json, "out");
    EXPECT_TRUE(member(root, "without_effect").items.empty() || offload == "cpu");
    return json_text(member(member(root, "store"), "nvme_paths"));
  };
  const std::string states = R"("offload_optimizer": {"device": "cpu", "nvme_path": "/n"})";
  const std::string parameters = R"("offload_param": {"device": "cpu", "nvme_path": "/n"})";
  EXPECT_EQ(paths("nvme", states), R"(["/n"])");
  EXPECT_EQ(paths("nvme", parameters), R"(["/n"])");
  EXPECT_EQ(paths("auto", states), R"(["/n"])");
  EXPECT_EQ(paths("auto", R"("offload_optimizer": {"device": "cpu"})"), "[]");
  EXPECT_EQ(paths("cpu", states), "[]");
  EXPECT_EQ(parse(R"({"activation_checkpointing": {"cpu_checkpointing": true}})").config.activations.offload,
            ActivationOffload::cpu);
  const ErrorParts missing = refusal(R"({"terrace": {"offload_activations": "nvme"}})");
  EXPECT_THAT(missing.reason, HasSubstr("zero_optimization.offload_optimizer.nvme_path is not given"));
}

TEST(EngineConfig, RefusesInFourParts) {
  const ErrorParts unknown = refusal("{\n  \"trian_batch_size\": 1}");
  EXPECT_EQ(unknown.what_failed, "cannot use the configuration");
  EXPECT_EQ(unknown.subject, "ds.json:2:3: trian_batch_size");
  EXPECT_EQ(unknown.reason, "unknown key \"trian_batch_size\" in the top level");
  EXPECT_EQ(unknown.advice, "did you mean \"train_batch_size\"?");
  const ErrorParts both = refusal(R"({"terrace": {"lora": {}}, "aio": {"use_gds": true}})", "");
  EXPECT_EQ(both.subject, "aio.use_gds");
  EXPECT_EQ(both.reason,
            "aio.use_gds: the package for Python does not do this\n"
            "terrace.lora: the package for Python does not do this; add adapters to the model, as peft does");
  EXPECT_EQ(both.advice, "leave it out");
  const ErrorParts no_json = refusal("{\"a\": }");
  EXPECT_EQ(no_json.what_failed, "cannot read the configuration");
  EXPECT_EQ(no_json.subject, "ds.json:1:7");
  EXPECT_FALSE(no_json.reason.empty());
  EXPECT_EQ(refusal(R"({"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}})").subject,
            "ds.json:1:54: zero_optimization.offload_param.device");
}

}  // namespace
}  // namespace terrace::engine_config_test
