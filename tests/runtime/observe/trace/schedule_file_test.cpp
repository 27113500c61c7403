// Schedules as files: what is written comes back, and what is none is refused with its place.
#include <terrace/runtime/observe/trace/schedule_file.h>

#include <gtest/gtest.h>

#include <filesystem>

#include <terrace/base/error.h>

#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::schedule_file_test {
namespace {

using testing::expect_error;

SimSchedule sample() {
  SimSchedule schedule{"a \"step\"", {}, {}};
  schedule.items = {{"param 0", 2097152, SimRole::param, 1},
                    {"grad 0", 4194304, SimRole::grad, 1},
                    {"state 0", (uint64_t{1} << 50) - 1, SimRole::state, 2},
                    {"input \xe2\x82\xac", 7, SimRole::activation, 0}};
  schedule.uses = {{"mb0/h.0/forward", 0, {0, 3}, {}, {}, 1125899906842623, {5, 0, 12}},
                   {"mb0/h.0/backward", 0, {0}, {}, {1}, 0, {}},
                   {"update/0", 1, {1}, {0, 2}, {}, 1, {}}};
  return schedule;
}

TEST(ScheduleFile, IsReadBackAsItWasWritten) {
  EXPECT_EQ(parse_schedule(schedule_text(sample()), "step.jsonl"), sample());
  const ScratchFolder folder;
  write_schedule(folder / "step.jsonl", sample());
  EXPECT_EQ(read_schedule(folder / "step.jsonl"), sample());
  expect_error(ErrorKind::io, {"nowhere"}, [&] { write_schedule(folder / "nowhere/x", sample()); });
}

TEST(ScheduleFile, TakesWhatPeopleWrite) {
  const SimSchedule schedule = parse_schedule(
      "{\"terrace_schedule\": 1, \"name\": \"mine\"}\n"
      "\n"
      "{\"bytes\": 10, \"item\": \"b\", \"role\": \"param\"}\r\n"
      "{\"item\": \"a\", \"bytes\": 20, \"role\": \"grad\", \"home\": 2}\n"
      "{\"use\": \"go\", \"reads\": [\"a\", \"b\"]}",
      "mine.jsonl");
  EXPECT_EQ(schedule.items[0].home_tier, 1u);
  EXPECT_EQ(schedule.items[1].home_tier, 2u);
  EXPECT_EQ(schedule.uses[0].reads, (std::vector<uint32_t>{0, 1}));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ScheduleFile, WhatIsNoScheduleIsRefusedWithItsPlace) {
  const struct {
    const char *from, *to;
    std::vector<std::string> said;
  } changes[] = {
      {"\"terrace_schedule\": 1", "\"terrace_schedule\": 2", {"s.jsonl:1:", "format is 2"}},
      {"\"terrace_schedule\": 1, ", "", {"s.jsonl:1:1", "does not begin"}},
      {"\"item\": \"grad 0\"", "\"item\": \"param 0\"", {"s.jsonl:3:1", "already"}},
      {"\"role\": \"grad\"", "\"role\": \"gradient\"", {"s.jsonl:3:", "gradient", "activation"}},
      {"\"bytes\": 4194304", "\"bytes\": 4194304.5", {"s.jsonl:3:", "bytes", "whole number"}},
      {"\"bytes\": 4194304", "\"bytes\": -1", {"s.jsonl:3:", "whole number"}},
      {"\"bytes\": 4194304", "\"bytes\": 0", {"grad 0", "no bytes"}},
      {"\"bytes\": 4194304, ", "", {"s.jsonl:3:1", "bytes", "missing"}},
      {"\"home\": 2", "\"home\": 99", {"s.jsonl:4:", "home"}},
      {"\"home\": 2", "\"hom\": 2", {"s.jsonl:4:", "unknown key", "hom"}},
      {"\"makes\": [\"grad 0\"]", "\"makes\": [\"grad 1\"]", {"s.jsonl:7:", "grad 1", "describes"}},
      {"\"makes\": [\"grad 0\"]", "\"makes\": \"grad 0\"", {"s.jsonl:7:", "list"}},
      {"\"makes\": [\"grad 0\"]", "\"makes\": [[\"grad 0\"]]", {"s.jsonl:7:", "not the name of an item"}},
      {"\"makes\": [\"grad 0\"]", "\"makes\": [\"param 0\"]", {"two of its lists"}},
      {"\"makes\": [\"grad 0\"]", "\"makes\": [\"grad 0\", \"grad 0\"]", {"s.jsonl:7:", "twice"}},
      {"{\"use\": \"update/0\"", "{\"uses\": \"update/0\"", {"s.jsonl:8:1", "neither"}},
      {"{\"use\": \"update/0\"", "{\"use\": update/0\"", {"s.jsonl:8:", "not valid JSON"}},
      {"{\"use\": \"update/0\"", "[1]\n{\"use\": \"update/0\"", {"s.jsonl:8:1", "not a JSON object"}},
  };
  const std::string good = schedule_text(sample());
  for (const auto& change : changes) {
    const std::string bad = replaced(good, change.from, change.to);
    try {
      parse_schedule(bad, "s.jsonl");
      ADD_FAILURE() << change.to << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      for (const std::string& said : change.said)
        EXPECT_NE(std::string(error.what()).find(said), std::string::npos)
            << said << " is not in " << error.what();
    }
  }
  expect_error(ErrorKind::config, {"empty"}, [] { parse_schedule("\n\n", "s.jsonl"); });
}

}  // namespace
}  // namespace terrace::schedule_file_test
