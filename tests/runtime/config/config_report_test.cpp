#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <terrace/runtime/config/json_document.h>
#include <terrace/runtime/config/schema.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {
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
  for (std::string line; std::getline(lines, line); ++line_count) {
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
    ASSERT_EQ(line.members.size(), 3u);
    if (line.members[0].value.text != "zero_optimization.offload_param.nvme_path") continue;
    found = true;
    EXPECT_EQ(line.members[1].value.text, "/a\"b");
    EXPECT_EQ(line.members[2].value.text, "d\"s.json:1:72");
  }
  EXPECT_TRUE(found);
}

TEST(ConfigReport, ShowsEveryKeyThatHasAnEffect) {
  const TrainConfig config = parse_train_config(R"({"scheduler": {"type": "WarmupDecayLR"}})", "ds.json");
  std::set<std::string> shown;
  for (const ResolvedValue& value : config.resolved) shown.insert(value.key);
  for (const SchemaKey& row : schema()) {
    const bool has_value = row.type != ValueType::section && row.type != ValueType::open_section;
    EXPECT_EQ(shown.contains(row.path()), row.effect == KeyEffect::honoured && has_value) << row.path();
  }
}

// Run with TERRACE_WRITE_DOCS=1 in the environment, it writes the file.
TEST(ConfigReport, MatchesTheReferenceInDocs) {
  const std::filesystem::path path =
      std::filesystem::path(__FILE__).parent_path() / "../../../docs/config.md";
  if (std::getenv("TERRACE_WRITE_DOCS") != nullptr) std::ofstream(path) << config_reference_markdown();
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing";
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == config_reference_markdown())
      << path << " is not what the schema says; write it again with TERRACE_WRITE_DOCS=1";
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
      EXPECT_EQ(parent->type, ValueType::section) << row.path();
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
}  // namespace terrace
