// Decisions as lines of a file, there and back.
#include <terrace/runtime/train/planning/decision_file.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <istream>
#include <memory>
#include <sstream>
#include <streambuf>

#include <terrace/base/units.h>

#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::decision_file_test {
namespace {

using testing::expect_error;

constexpr DecisionSubject kSubject{9, 4};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class DecisionFileTest : public ::testing::Test {
 protected:
  std::filesystem::path written(const std::string& text) const {
    std::ofstream(path_) << text;
    return path_;
  }

  ScratchFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "decisions.jsonl";
  MemoryLog log_;
};

TEST_F(DecisionFileTest, GivesBackWhatItTook) {
  const std::vector<Decision> decisions = {
      {DecisionKind::step, 1, {}},      {DecisionKind::use, 0, "mb0/\"odd\" \n name/forward"},
      {DecisionKind::fetch, 3, {}},     {DecisionKind::ahead, 4, {}},
      {DecisionKind::evict, 8, {}},     {DecisionKind::bypass, 0, {}},
      {DecisionKind::gradient, 3, {}},  {DecisionKind::landed, 3, {}},
      {DecisionKind::update, 1, {}},    {DecisionKind::stale, 3, {}},
      {DecisionKind::evaluation, 1, {}}};
  {
    DecisionFile file(path_, kSubject, kMiB, log_);
    for (const Decision& decision : decisions) file.add(decision);
  }
  DecisionReplay replay(path_, kSubject);
  for (const Decision& decision : decisions) {
    ASSERT_NE(replay.next(), nullptr);
    EXPECT_EQ(*replay.next(), decision);
    replay.advance();
  }
  EXPECT_EQ(replay.next(), nullptr);
  EXPECT_EQ(replay.place(), path_.string() + ":12");
  EXPECT_TRUE(log_.lines().empty());
}

TEST_F(DecisionFileTest, EndsAtItsLimitAndSaysSo) {
  {
    DecisionFile file(path_, kSubject, 40, log_);
    for (uint64_t i = 0; i < 100; ++i) file.add({DecisionKind::fetch, i, {}});
  }
  EXPECT_EQ(text_of(path_),
            "{\"terrace_decisions\": 1, \"chunks\": 9, \"slots\": 4}\n{\"fetch\": 0}\n{\"fetch\": 1}\n"
            "{\"fetch\": 2}\n{\"cut\": true}\n");
  ASSERT_EQ(log_.lines().size(), 1u);
  DecisionReplay replay(path_, kSubject);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(replay.next(), nullptr);
    replay.advance();
  }
  EXPECT_EQ(replay.next(), nullptr);
  std::ofstream(path_, std::ios::app) << "{\"fetch\": 3}\n";
  DecisionReplay longer(path_, kSubject);
  expect_error(ErrorKind::config, {"decisions.jsonl:6", "the decisions end there"}, [&] {
    while (longer.next() != nullptr) longer.advance();
  });
}

TEST_F(DecisionFileTest, WhatIsNoLogOfThisRunIsRefusedWithItsPlace) {
  const auto refused = [&](const std::string& text, std::vector<std::string> words) {
    written(text);
    expect_error(ErrorKind::config, words, [&] {
      DecisionReplay replay(path_, kSubject);
      while (replay.next() != nullptr) replay.advance();
    });
  };
  const std::string head = "{\"terrace_decisions\": 1, \"chunks\": 9, \"slots\": 4}\n";
  refused("", {"empty"});
  refused("{\"terrace_decisions\": 2, \"chunks\": 9, \"slots\": 4}\n", {"its format is 2"});
  refused("{\"chunks\": 9, \"slots\": 4}\n", {"does not begin"});
  refused("{\"terrace_decisions\": 1, \"chunks\": 9, \"slots\": 5}\n", {"9 chunks in 5 device slots"});
  refused(head + "{\"fetch\": 1}\n{\"fetch\": -1}\n", {"decisions.jsonl:3:11", "whole number"});
  refused(head + "{\"think\": 1}\n", {"decisions.jsonl:2:2", "no decision"});
  refused(head + "{\"fetch\": 1, \"evict\": 2}\n", {"decisions.jsonl:2", "no decision"});
  refused("{\"terrace_decisions\": 1, \"chunks\": 4294967305, \"slots\": 4}\n", {"up to 4294967295"});
  refused(head + "{\"use\": 1}\n", {"decisions.jsonl:2:9", "not the name of an operation"});
  refused(head + "[]\n", {"decisions.jsonl:2", "not a JSON object"});
  refused(head + "{\"fetch\": \"" + std::string(70000, 'x') + "\"}\n", {"decisions.jsonl:2", "longer"});
  expect_error(ErrorKind::config, {"nowhere"}, [&] { DecisionReplay(folder_.path() / "nowhere", kSubject); });
  expect_error(ErrorKind::config, {"Is a directory"}, [&] { DecisionReplay(folder_.path(), kSubject); });
  expect_error(ErrorKind::io, {"nowhere"},
               [&] { DecisionFile(folder_.path() / "nowhere" / "file", kSubject, kMiB, log_); });
}

// A text of `size` characters without a line end, which counts what is read of it.
class LongLine final : public std::streambuf {
 public:
  LongLine(size_t size, size_t& taken) : left_(size), taken_(taken) {}

 protected:
  int underflow() override {
    if (left_ == 0) return traits_type::eof();
    const size_t size = std::min(left_, block_.size());
    left_ -= size;
    taken_ += size;
    setg(block_.data(), block_.data(), block_.data() + size);
    return traits_type::to_int_type(block_[0]);
  }

 private:
  std::string block_ = std::string(1024, 'x');
  size_t left_;
  size_t& taken_;
};

TEST_F(DecisionFileTest, ALineWithoutEndIsNotReadToItsEnd) {
  size_t taken = 0;
  LongLine line(16 * kMiB, taken);
  expect_error(ErrorKind::config, {"endless:1", "longer than any decision"},
               [&] { DecisionReplay(std::make_unique<std::istream>(&line), "endless", kSubject); });
  EXPECT_LE(taken, 66 * kKiB);
}

// To the last bit of every rate.
TEST_F(DecisionFileTest, KeepsWhichSideUpdatesWhat) {
  const DecisionSubject subjects[] = {kSubject,
                                      {9, 4, 0.1 + 0.2, std::nullopt},
                                      {9, 4, 1, UpdateRates{1e9 / 3, 5e-324, 0}},
                                      {9, 4, 1, UpdateRates{1.7976931348623157e308, 2e10 / 7, 3.5e9}}};
  for (const DecisionSubject& subject : subjects) {
    { const DecisionFile file(path_, subject, kMiB, log_); }
    SCOPED_TRACE(text_of(path_));
    EXPECT_EQ(recorded_subject(path_), subject);
    EXPECT_EQ(DecisionReplay(path_, subject).next(), nullptr);
  }
  const auto says = [&](const std::string& sides, const DecisionSubject& wanted) {
    written("{\"terrace_decisions\": 1, \"chunks\": 9, \"slots\": 4" + sides + "}\n");
    DecisionReplay(path_, wanted);
  };
  expect_error(ErrorKind::config,
               {"the processor has 0.5 of them, and rates decide here", "offload_optimizer.ratio to auto"},
               [&] { says(", \"processor_share\": 0.5", subjects[2]); });
  expect_error(ErrorKind::config, {"rates decide, and the processor has 1 of them here"},
               [&] { says(", \"update_rates\": [1, 1, 0]", kSubject); });
  for (const char* const wrong :
       {"1", "[1, 1]", "[1, 1, 1, 1]", "[0, 1, 1]", "[1, 0, 1]", "[1, 1, -1]", "[1, 1, \"1\"]"})
    expect_error(ErrorKind::config, {"decisions.jsonl:1:", "list of three rates"},
                 [&] { says(std::string(", \"update_rates\": ") + wrong, kSubject); });
  for (const char* const wrong : {"-0.1", "1.1", "\"1\""})
    expect_error(ErrorKind::config, {"decisions.jsonl:1:", "from 0 to 1"},
                 [&] { says(std::string(", \"processor_share\": ") + wrong, kSubject); });
  written("");
  expect_error(ErrorKind::config, {"empty"}, [&] { recorded_subject(path_); });
  expect_error(ErrorKind::config, {"Is a directory"}, [&] { recorded_subject(folder_.path()); });
}

TEST_F(DecisionFileTest, ADiskThatIsFullCostsAWarning) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  DecisionFile file("/dev/full", kSubject, kMiB, log_);
  for (uint64_t step = 1; step <= 3; ++step) file.add({DecisionKind::step, step, {}});
  ASSERT_EQ(log_.lines().size(), 1u);
  EXPECT_NE(log_.lines()[0].text.find("/dev/full"), std::string::npos);
}

}  // namespace
}  // namespace terrace::decision_file_test
