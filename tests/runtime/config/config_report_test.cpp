#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <terrace/base/error.h>
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/config/schema/schema.h>
#include <terrace/runtime/config/schema/suggestions.h>
#include <terrace/runtime/config/train_config.h>

#include "runtime/config/config_reference.h"

namespace terrace::config_report_test {
namespace {

using ::testing::HasSubstr;

TEST(ConfigReport, AlignsTheTableAndNamesEveryOrigin) {
  const TrainConfig config = parse_train_config("{\"terrace\": {\"seed\": 7}}", "ds.json");
  const std::string table = config_table(config);
  std::istringstream lines(table);
  std::string header;
  std::getline(lines, header);
  const size_t value_column = header.find("value");
  const size_t origin_column = header.find("origin");
  uint32_t line_count = 0;
  for (std::string line; std::getline(lines, line) && !line.empty(); ++line_count) {
    EXPECT_EQ(line[value_column - 1], ' ') << line;
    EXPECT_NE(line[value_column], ' ') << line;
    EXPECT_NE(line[origin_column], ' ') << line;
  }
  EXPECT_EQ(line_count, config.resolved.size());
  EXPECT_THAT(table, HasSubstr("ds.json:1:14"));
}

TEST(ConfigReport, WritesJsonThatItCanRead) {
  const TrainConfig config = parse_train_config(
      R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a\"b"}}})",
      "d\"s.json");
  const JsonNode root = parse_json(config_json(config), "out");
  ASSERT_EQ(root.items.size(), config.resolved.size());
  bool found = false;
  for (const JsonNode& line : root.items) {
    ASSERT_EQ(line.members.size(), line.members[0].value.text == "zero_optimization.stage" ? 4u : 3u);
    if (line.members[0].value.text != "zero_optimization.offload_param.nvme_path") continue;
    found = true;
    EXPECT_EQ(line.members[1].value.text, "/a\"b");
    EXPECT_EQ(line.members[2].value.text, "d\"s.json:1:72");
  }
  EXPECT_TRUE(found);
}

// Keys of a scheduler or an optimizer are shown where it is chosen; those of a parameter group stand in the
// list of groups.
TEST(ConfigReport, ShowsEveryKeyThatHasAnEffect) {
  std::set<std::string> shown;
  for (const char* chosen :
       {R"("scheduler": {"type": "WarmupDecayLR"})", R"("scheduler": {"type": "WarmupCosineLR"})",
        R"("scheduler": {"type": "LRRangeTest"})", R"("optimizer": {"type": "SGD"})",
        R"("optimizer": {"type": "Muon"})",
        R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}})"}) {
    const TrainConfig config = parse_train_config(std::string("{") + chosen + "}", "ds.json");
    for (const ResolvedValue& value : config.resolved) shown.insert(value.key);
  }
  for (const SchemaKey& row : schema()) {
    const SchemaKey* parent = find_path(row.section);
    const bool in_list = parent != nullptr && parent->type == ValueType::section_list;
    const bool has_value = !in_list && (!has_subkeys(row) || row.type == ValueType::section_list);
    EXPECT_EQ(shown.contains(row.path()), row.effect == KeyEffect::honoured && has_value) << row.path();
  }
}

TEST(ConfigReport, SaysWhatTheStageComesTo) {
  const auto note = [](std::string_view text) {
    const TrainConfig config = parse_train_config(text, "ds.json");
    const std::string table = config_table(config);
    return table.substr(table.find("\n\n") + 2);
  };
  EXPECT_EQ(note(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})"),
            "zero_optimization.stage: stage 2 in one process: nothing is divided; parameters are in device "
            "memory, master weights and moments in host memory; stages 1 and 2 do the same here, and the "
            "file may offload the optimizer only\n");
  EXPECT_THAT(note("{}"), HasSubstr("stage 0 in one process"));
  EXPECT_THAT(
      note(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}}})"),
      HasSubstr("parameters are on nvme, with host memory as their cache"));
  EXPECT_THAT(note(R"({"zero_optimization": {"stage": 2}, "terrace": {"ranks": 2}})"),
              HasSubstr("on 2 ranks: each has all parameters, and its share of the rest; parameters are in "
                        "device memory"));
  EXPECT_THAT(
      note(R"({"zero_optimization": {"stage": 3}, "terrace": {"ranks": 2}})"),
      HasSubstr("on 2 ranks: each has its share of everything; parameters are in device memory, master"));
}

TEST(ConfigReport, ExplainsAKeyWithItsValueAndOrigin) {
  const TrainConfig config =
      parse_train_config(R"({"zero_optimization": {"prefetch_bucket_size": 7}})", "ds.json");
  EXPECT_EQ(config_explanation(config, "aio.queue_depth"),
            "aio.queue_depth: a whole number from 1 to 4096\n  honoured: Requests in flight.\n"
            "  here: null, default\n");
  EXPECT_EQ(config_explanation(config, "zero_optimization.prefetch_bucket_size"),
            "zero_optimization.prefetch_bucket_size: a whole number of at least 0\n"
            "  mapped to zero_optimization.stage3_prefetch_bucket_size: The same key without its stage3_ "
            "prefix, as some files have it.\n"
            "  here: 7, mapped from zero_optimization.prefetch_bucket_size (ds.json:1:24)\n");
  EXPECT_THAT(config_explanation(config, "nvme_path"),
              HasSubstr("zero_optimization.offload_optimizer.nvme_path: "));
  EXPECT_THAT(config_explanation(config, "zero_optimization.stage"), HasSubstr("\n  stage 0 in one process"));
  try {
    config_explanation(config, "aio.queue_dept");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"queue_depth\"?"));
  }
}

// Run with TERRACE_WRITE_DOCS=1 in the environment, it writes the file.
TEST(ConfigReport, MatchesTheReferenceInDocs) {
  const std::filesystem::path path =
      std::filesystem::path(__FILE__).parent_path() / "../../../docs/config.md";
  const std::string page = testing::config_reference_markdown();
  if (std::getenv("TERRACE_WRITE_DOCS") != nullptr) std::ofstream(path) << page;
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing";
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == page) << path
                                  << " is not what the schema says; write it again with TERRACE_WRITE_DOCS=1";
}

TEST(ConfigReport, KeepsTheSchemaConsistent) {
  std::set<std::string> paths;
  for (const SchemaKey& row : schema()) {
    EXPECT_TRUE(paths.insert(row.path()).second) << row.path() << " stands there twice";
    EXPECT_FALSE(row.note.empty()) << row.path();
    EXPECT_EQ(row.note.back(), '.') << row.path();
    EXPECT_EQ(row.effect == KeyEffect::mapped, !row.limits.stands_for.empty()) << row.path();
    EXPECT_FALSE(row.type == ValueType::choice && row.limits.allowed.empty()) << row.path();
    if (!row.section.empty()) {
      const SchemaKey* parent = find_path(row.section);
      ASSERT_NE(parent, nullptr) << row.path();
      EXPECT_TRUE(parent->type == ValueType::section || parent->type == ValueType::section_list)
          << row.path();
    }
    if (row.effect == KeyEffect::mapped) {
      const SchemaKey* target = find_path(row.limits.stands_for);
      ASSERT_NE(target, nullptr) << row.path();
      EXPECT_NE(target->effect, KeyEffect::mapped) << row.path();
    }
  }
}

TEST(ConfigReport, CountsEditsWithSwapsOfNeighboursAsOne) {
  EXPECT_EQ(edit_distance("stage", "stage"), 0u);
  EXPECT_EQ(edit_distance("Stage", "sTAGE"), 0u);
  EXPECT_EQ(edit_distance("stgae", "stage"), 1u);
  EXPECT_EQ(edit_distance("stag", "stage"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace terrace::config_report_test
