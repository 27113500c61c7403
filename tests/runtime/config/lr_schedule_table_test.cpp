// LrSchedule against tables of what DeepSpeed sets; bench/compare/schedulers says how they are made.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/config/lr_schedule.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace::lr_schedule_table_test {
namespace {

const JsonNode& member(const JsonNode& object, std::string_view key) {
  for (const JsonMember& candidate : object.members)
    if (candidate.key == key) return candidate.value;
  throw std::runtime_error("no " + std::string(key));
}

void compare(const JsonNode& line, const TrainConfig& config, std::string_view type) {
  LrScheduleOptions options = config.schedule;
  options.base_lr.clear();
  for (const JsonNode& rate : member(line, "group_lr").items) options.base_lr.push_back(rate.number);
  const LrSchedule schedule(options);
  const std::vector<JsonNode>& updates = member(line, "updates").items;
  for (size_t update = 0; update < updates.size(); ++update) {
    for (uint32_t group = 0; group < updates[update].items.size(); ++group) {
      const std::vector<JsonNode>& expected = updates[update].items[group].items;
      const ScheduledValues values = schedule.at(update, group);
      EXPECT_DOUBLE_EQ(values.lr, expected[0].number) << type << " update " << update << " group " << group;
      EXPECT_DOUBLE_EQ(values.beta1.value_or(config.optimizer.beta1), expected[1].number)
          << type << " update " << update << " group " << group;
      EXPECT_EQ(values.beta2.value_or(config.optimizer.beta2), expected[2].number)
          << type << " update " << update << " group " << group;
    }
  }
}

TEST(LrScheduleTables, AgreeWithDeepSpeedInEveryUpdate) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "lr_schedule_tables.jsonl");
  std::set<std::string> types;
  for (std::string text; std::getline(file, text);) {
    const JsonNode line = parse_json(text, "table");
    const JsonNode& config = member(line, "config");
    const std::string type = member(member(config, "scheduler"), "type").text;
    types.insert(type);
    compare(line, parse_train_config(json_text(config), type), type);
  }
  EXPECT_EQ(types.size(), 5u);
}

}  // namespace
}  // namespace terrace::lr_schedule_table_test
