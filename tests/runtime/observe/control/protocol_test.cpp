// Requests as anybody may write them, and answers as programs read them.
#include <terrace/runtime/observe/control/control_protocol.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include <terrace/base/units.h>
#include <terrace/runtime/observe/control/job_status.h>

namespace terrace::protocol_test {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::string& line) {
  try {
    parse_control_request(line);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_FALSE(error.parts().advice.empty()) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "taken: " << line;
  return "";
}

TEST(ControlProtocol, ReadsWhatItWrites) {
  for (const ControlRequest& request :
       {ControlRequest{ControlCommand::status, 0}, ControlRequest{ControlCommand::set, 5 * kGiB},
        ControlRequest{ControlCommand::save, 0}, ControlRequest{ControlCommand::stop, 0}}) {
    std::string line = control_request(request);
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    const ControlRequest parsed = parse_control_request(line);
    EXPECT_EQ(parsed.command, request.command);
    EXPECT_EQ(parsed.host_memory_bytes, request.host_memory_bytes);
  }
}

TEST(ControlProtocol, TakesSizesAsPeopleWriteThem) {
  const ControlRequest request =
      parse_control_request(R"({"terrace": 1, "command": "set", "key": "host-memory", "value": "1.5GiB"})");
  EXPECT_EQ(request.host_memory_bytes, 3 * kGiB / 2);
}

TEST(ControlProtocol, RefusesWhatIsNoRequestAndSaysWhy) {
  EXPECT_THAT(refusal_of(R"({"terrace": 1, "command": "statsu"})"), HasSubstr("did you mean \"status\"?"));
  EXPECT_THAT(refusal_of(R"({"terrace": 1, "command": "reboot"})"),
              HasSubstr("there are status, set, save and stop"));
  EXPECT_THAT(refusal_of(R"({"terrace": 1})"), HasSubstr("there is no such command"));
  EXPECT_THAT(refusal_of(R"({"command": "status"})"), HasSubstr("it says no version"));
  EXPECT_THAT(refusal_of(R"({"terrace": 2, "command": "status"})"), HasSubstr("speaks version 1"));
  EXPECT_THAT(refusal_of(R"({"terrace": "1", "command": "status"})"), HasSubstr("speaks version 1"));
  EXPECT_THAT(refusal_of(R"({"terrace": 1, "command": "stop", "now": true})"), HasSubstr("no such member"));
  EXPECT_THAT(refusal_of(R"({"terrace": 1, "command": "set", "key": "host-memroy", "value": "1GiB"})"),
              HasSubstr("did you mean \"host-memory\"?"));
  EXPECT_THAT(refusal_of(R"({"terrace": 1, "command": "set", "key": "host-memory"})"),
              HasSubstr("it has no value"));
  EXPECT_THAT(refusal_of(R"({"terrace": 1, "command": "set", "key": "host-memory", "value": "much"})"),
              HasSubstr("host-memory"));
  EXPECT_THAT(refusal_of(R"({"terrace": 1, "command": "set", "key": "host-memory", "value": [1]})"),
              HasSubstr("host-memory"));
  EXPECT_THAT(refusal_of("[]"), HasSubstr("not a JSON object"));
  for (const char* line : {"", "status", "{", "\xff\xfe", "{\"terrace\": 1, \"command\": \"status\"} x"})
    refusal_of(line);
}

TEST(ControlProtocol, ThrowsNothingElseForAnyBytes) {
  const std::string whole = R"({"terrace": 1, "command": "set", "key": "host-memory", "value": "1GiB"})";
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string line = whole;
    for (uint32_t edits = random() % 4 + 1; edits > 0; --edits)
      line[random() % line.size()] = static_cast<char>(random() % 256);
    line.resize(random() % 8 == 0 ? random() % line.size() : line.size());
    try {
      parse_control_request(line);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config) << line;
    }
  }
}

TEST(ControlProtocol, TellsOfAnErrorInAllItsParts) {
  const Error told(ErrorKind::capacity, {"what \"failed\"", "on\nwhat", "why", "advice"});
  std::string line = control_refusal(told);
  ASSERT_EQ(line.find('\n'), line.size() - 1) << "an answer is one line";
  line.pop_back();
  try {
    parse_control_answer(line);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_STREQ(error.what(), told.what());
  }
}

TEST(ControlProtocol, DoesNotTrustAnAnswer) {
  for (const char* line :
       {"", "{}", "[]", R"({"ok": 1})", R"({"ok": false})", R"({"ok": false, "error": 3})", "x"}) {
    try {
      parse_control_answer(line);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::io) << line;
    }
  }
  EXPECT_EQ(json_whole_number(parse_control_answer(R"({"ok": true, "step": 7})"), "step"), 7u);
}

TEST(LineBuffer, GivesLinesWhateverThePiecesThatTheyComeIn) {
  const std::string text = "one\n\ntwo two\nthree";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    LineBuffer buffer(16);
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size(); at += piece) {
      buffer.add(text.substr(at, piece));
      while (const std::optional<std::string> line = buffer.next()) lines.push_back(*line);
      EXPECT_FALSE(buffer.too_long());
    }
    EXPECT_THAT(lines, ::testing::ElementsAre("one", "", "two two"));
  }
}

TEST(LineBuffer, SeesALineThatIsTooLongBeforeItEnds) {
  LineBuffer buffer(8);
  buffer.add("1234567");
  EXPECT_FALSE(buffer.too_long());
  buffer.add("8");
  EXPECT_TRUE(buffer.too_long());
  buffer.add("\n");
  EXPECT_TRUE(buffer.too_long());
  EXPECT_FALSE(buffer.next());
  LineBuffer other(8);
  other.add("1234567\n12345678\n");  // with its newline: 8 bytes, then 9
  EXPECT_EQ(other.next(), "1234567");
  EXPECT_TRUE(other.too_long());
}

TEST(JobStatus, ComesBackAsItWas) {
  JobStatus status;
  status.pid = 4711;
  status.model = "gpt2 \"small\"";
  status.step = 3;
  status.steps = UINT64_MAX;
  status.loss = 2.5;
  status.learning_rate = 1e-3;
  status.tokens = 512;
  status.step_ns = 123456789;
  status.update_mode = "next_forward";
  status.links.items = {{"h2d", 1}, {"d2h", (uint64_t{1} << 62) + 1}};
  status.waits.items = {{"fetch_wait", 5}};
  status.bound_by = "disk_reads";
  status.tiers = {{"device", 3, "as configured", 4, 2, 2, {{"activations", 2}}},
                  {"nvme", 0, "", 9, 9, 9, {}}};
  status.least_host_bytes = 10;
  status.most_host_bytes = 30;
  status.kept_chunks = 4;
  status.record_chunks = 8;
  status.commit_step = 2;
  status.at = "micro-batch 2 of 4, backward, layer 7 of 12";
  status.waits_for = "a \\ b";
  const std::string json = job_status_json(status);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  const JobStatus back = parse_job_status(parse_json(json, "a test"));
  EXPECT_EQ(job_status_json(back), json);
  EXPECT_EQ(back.steps, UINT64_MAX);
  EXPECT_EQ(back.links.items[1].amount, (uint64_t{1} << 62) + 1);
  EXPECT_EQ(back.commit_step, 2u);
  EXPECT_FALSE(back.checkpoint_step);
  EXPECT_EQ(back.at, status.at);
  EXPECT_EQ(back.waits_for, status.waits_for);
  EXPECT_EQ(back.bound_by, "disk_reads");

  // One rank of one is no row.
  EXPECT_EQ(json.find("rank"), std::string::npos);
  status.rank_count = 3;
  status.ranks = {{0, "a", 11, 4, 20, 1000, 0, false, "mb0/\"h\".3/forward"},
                  {2, "b", 13, 3, 5000, 1000, 750, true, std::string(1000, 'x')}};
  const JobStatus ranks = parse_job_status(parse_json(job_status_json(status), "a test"));
  EXPECT_EQ(ranks.rank_count, 3u);
  ASSERT_EQ(ranks.ranks.size(), 2u);
  EXPECT_EQ(ranks.ranks[0].operation, status.ranks[0].operation);
  EXPECT_EQ(ranks.ranks[1].rank_wait_ns, 750u);
  EXPECT_EQ(ranks.ranks[1].silent_ms, 5000u);
  EXPECT_TRUE(ranks.ranks[1].waits_for_ranks && !ranks.ranks[0].waits_for_ranks);
  status.ranks.assign(JobStatus::kMostShownRanks, status.ranks[1]);
  EXPECT_LT(job_status_json(status).size(), 60'000u);  // an answer has 65 536 bytes

  // As a job of an earlier Terrace says it.
  std::string former = json;
  const std::string_view key = "commit_step";
  ASSERT_NE(former.find(key), std::string::npos);
  former.replace(former.find(key), key.size(), "epoch_step");
  EXPECT_EQ(parse_job_status(parse_json(former, "a test")).commit_step, 2u);

  status.loss.reset();
  EXPECT_FALSE(parse_job_status(parse_json(job_status_json(status), "a test")).loss);
  EXPECT_THROW(parse_job_status(parse_json(R"({"pid": 1})", "a test")), Error);
  EXPECT_THROW(parse_job_status(parse_json("[]", "a test")), Error);
}

}  // namespace
}  // namespace terrace::protocol_test
