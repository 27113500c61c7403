// The file of a trace, of events written by hand.
#include <terrace/runtime/observe/trace/trace_file.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/observe/trace/merge_traces.h>

#include "support/scratch_folder.h"

namespace terrace::trace_file_test {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t files_in(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

class TraceFiles : public ::testing::Test {
 protected:
  TraceFiles() : root_(folder_.path()), path_(root_ / "trace.json") {
    events_.set_facts({.device_slot_count = 4, .nvme_paths = {"/mnt/\"a\""}});
    events_.add_engine("step");
  }
  // Of the events of this test.
  std::vector<std::string> lines(const std::vector<TraceEvent>& events) {
    {
      TraceFile file(path_, 1000);
      for (const TraceEvent& event : events) file.add(events_, event);
      file.finish(events_, "a run");
    }
    const std::string text = text_of(path_);
    parse_json(text, "trace");
    std::vector<std::string> found;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      if (line.find(R"("ph": "M", "name": "process)") == std::string::npos) found.push_back(line);
    }
    return found;
  }
  void expect_line(const std::vector<std::string>& all, const std::string& line) {
    const bool is_there = std::ranges::any_of(
        all, [&](const std::string& other) { return other == line || other == line + ","; });
    std::string text;
    for (const std::string& other : all) text += other + "\n";
    EXPECT_TRUE(is_there) << line << "\nis not in\n" << text;
  }
  static TraceEvent span(TraceKind kind, uint64_t begin_ns, uint64_t end_ns) {
    TraceEvent event;
    event.kind = kind;
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    event.step = 3;
    return event;
  }
  static TraceEvent read(uint64_t begin_ns, uint64_t end_ns) {
    TraceEvent event = span(TraceKind::transfer, begin_ns, end_ns);
    event.link = TraceLink::nvme_read;
    event.role = TransferRole::state;
    event.reason = TransferReason::update;
    event.chunk = 7;
    event.bytes = 4096;
    return event;
  }

  ScratchFolder folder_;
  std::filesystem::path root_;
  std::filesystem::path path_;
  FakeClock clock_;
  StepEvents events_{clock_, {.memory_bytes = 64 << 10}};
};

TEST_F(TraceFiles, WriteTimesExactly) {
  TraceEvent use = span(TraceKind::use, 1'234'567, 2'000'000);
  use.name = events_.number_of("mb0/h0/forward");
  use.micro_batch = 2;
  use.counts = {3, 2, 1};
  expect_line(
      lines({use}),
      R"({"ph": "X", "name": "mb0/h0/forward", "cat": "use", "pid": 1, "tid": 2, "ts": 1233.567, "dur": )"
      R"(765.433, "args": {"step": 3, "kind": "forward", "micro_batch": 2, "chunks_there": 3, )"
      R"("chunks_fetched_ahead": 2, "chunks_fetched_on_demand": 1}})");
}

TEST_F(TraceFiles, PutTransfersThatOverlapIntoLanesOfTheirPath) {
  const std::vector<std::string> all = lines({read(2000, 5000), read(3000, 6000), read(5000, 7000)});
  const std::string head = R"({"ph": "X", "name": "state 7", "cat": "transfer", "pid": 2, "tid": )";
  const std::string tail =
      R"(.000, "args": {"step": 3, "link": "nvme_read", "role": "state", "reason": "update", "bytes": 4096, )"
      R"("failed": false, "chunk": 7, "path": "/mnt/\"a\"", "engine": "step"}})";
  expect_line(all, head + R"(10, "ts": 1.000, "dur": 3)" + tail);
  expect_line(all, head + R"(11, "ts": 2.000, "dur": 3)" + tail);
  expect_line(all, head + R"(10, "ts": 4.000, "dur": 2)" + tail);
  expect_line(
      all,
      R"({"ph": "M", "name": "thread_name", "pid": 2, "tid": 11, "args": {"name": "reads of /mnt/\"a\" #2"}})");
}

TEST_F(TraceFiles, LeadFromTheCopyOfAFetchToItsUse) {
  TraceEvent copy = span(TraceKind::transfer, 3000, 4000);
  copy.link = TraceLink::h2d;
  copy.chunk = 5;
  copy.id = 77;
  TraceEvent fetch = span(TraceKind::fetch, 2000, 9000);
  fetch.chunk = 5;
  fetch.id = 77;
  const std::vector<std::string> all = lines({copy, fetch});
  expect_line(all,
              R"({"ph": "s", "id": 77, "name": "fetch", "cat": "fetch", "pid": 2, "tid": 1, "ts": 2.000, )"
              R"("args": {"chunk": 5, "asked_at_us": 1.000}})");
  expect_line(all, R"({"ph": "f", "bp": "e", "id": 77, "name": "fetch", "cat": "fetch", "pid": 1, "tid": 2, )"
                   R"("ts": 8.000, "args": {"chunk": 5, "asked_at_us": 1.000}})");
}

TEST_F(TraceFiles, DrawNoArrowWithoutBothOfItsEnds) {
  TraceEvent fetch = span(TraceKind::fetch, 2000, 9000);
  fetch.chunk = 5;
  fetch.id = 77;  // its copy was not recorded
  TraceEvent copy = span(TraceKind::transfer, 3000, 4000);
  copy.link = TraceLink::h2d;
  copy.chunk = 6;
  copy.id = 78;  // and this one serves nobody
  TraceEvent on_demand = fetch;
  on_demand.chunk = 6;
  on_demand.id = 0;
  for (const std::string& line : lines({fetch, copy, on_demand})) {
    EXPECT_EQ(line.find(R"("ph": "s")"), std::string::npos) << line;
    EXPECT_EQ(line.find(R"("ph": "f")"), std::string::npos) << line;
  }
}

TEST_F(TraceFiles, ShowWhatTheSlotsOfTheDeviceHold) {
  TraceEvent place = span(TraceKind::place, 2000, 2000);
  place.counts = {2, 1, 0};
  expect_line(lines({place}), R"({"ph": "C", "name": "device slots", "pid": 5, "ts": 1.000, "args": )"
                              R"({"parameters": 2, "gradients": 1, "leaving": 0, "free": 1}})");
}

TEST_F(TraceFiles, CountHitsFromTheBeginningOfAStep) {
  TraceEvent first = span(TraceKind::use, 2000, 3000);
  first.counts = {2, 1, 0};
  TraceEvent second = span(TraceKind::use, 4000, 5000);
  second.counts = {1, 0, 4};
  TraceEvent next = span(TraceKind::use, 6000, 7000);
  next.step = 4;
  next.counts = {5, 0, 0};
  const std::vector<std::string> all = lines({first, second, next});
  const std::string head = R"({"ph": "C", "name": "cache of the device, chunks this step", "pid": 5, "ts": )";
  expect_line(all, head + R"(3.000, "args": {"hits": 3, "fetched ahead": 1, "on demand": 4}})");
  expect_line(all, head + R"(5.000, "args": {"hits": 5, "fetched ahead": 0, "on demand": 0}})");
}

TEST_F(TraceFiles, TakeTheirNameWhenTheyAreComplete) {
  std::ofstream(path_) << "before";
  {
    TraceFile file(path_, 0);
    file.add(events_, span(TraceKind::step, 0, 10));
    EXPECT_EQ(text_of(path_), "before");
  }
  EXPECT_EQ(text_of(path_), "before");
  EXPECT_EQ(files_in(root_), 1u);
  {
    TraceFile file(path_, 0);
    file.add(events_, span(TraceKind::step, 0, 10));
    file.finish(events_, "");
    EXPECT_EQ(file.event_count(), 1u);
  }
  parse_json(text_of(path_), "trace");
  EXPECT_EQ(files_in(root_), 1u);
}

TEST_F(TraceFiles, AreRefusedWhereNoneCanBeMade) {
  for (const std::filesystem::path& path : {root_ / "missing" / "trace.json", root_}) {
    try {
      const TraceFile file(path, 0);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_FALSE(error.parts().reason.empty());
    }
  }
}

TEST_F(TraceFiles, OfSeveralRanksLieInOneFileWithAProcessEach) {
  std::vector<std::filesystem::path> parts;
  for (const uint32_t rank : {0u, 1u}) {
    TraceEvent copy = span(TraceKind::transfer, 2000, 3000), fetch = span(TraceKind::fetch, 2500, 4000);
    copy.link = TraceLink::h2d;
    copy.chunk = fetch.chunk = 5;
    copy.id = fetch.id = 9;
    parts.push_back(root_ / ("part " + std::to_string(rank)));
    TraceFile file(parts.back(), 1000, {rank, 2, "rank " + std::to_string(rank) + " of 2", 1500});
    file.add(events_, copy);
    file.add(events_, fetch);
    for (int i = 0; i < 10'000; ++i) file.add(events_, read(5000, 6000));
    file.finish(events_, "a run");
    EXPECT_GT(std::filesystem::file_size(parts.back()), uint64_t{1} << 20)
        << "no more than is copied at once";
  }
  merge_traces(parts, path_);
  EXPECT_EQ(files_in(root_), 3u);
  const std::string text = text_of(path_);
  const JsonNode trace = parse_json(text, "trace");
  std::map<std::pair<std::string, std::string>, size_t> counts;  // by kind of event and process
  std::set<std::string> names, flows;
  for (const JsonNode& event : trace.find("traceEvents")->items) {
    ++counts[{event.find("ph")->text, event.find("pid")->text}];
    if (event.find("name")->text == "process_name") names.insert(event.find("args")->find("name")->text);
    if (event.find("ph")->text == "s") flows.insert(event.find("id")->text);
  }
  EXPECT_EQ(names, (std::set<std::string>{"rank 0 of 2", "rank 1 of 2"}));
  EXPECT_EQ(flows, (std::set<std::string>{"18", "19"}));
  for (const char* process : {"1", "2"}) {
    EXPECT_EQ((counts[{"X", process}]), 10'001u);
    EXPECT_EQ((counts[{"s", process}]), 1u);
    EXPECT_EQ((counts[{"f", process}]), 1u);
  }
  const JsonNode& ranks = *trace.find("otherData")->find("ranks");
  ASSERT_EQ(ranks.items.size(), 2u);
  EXPECT_EQ(ranks.items[1].find("rank")->text, "rank 1 of 2");
  EXPECT_EQ(ranks.items[1].find("clock_error_us")->text, "1.500");
}

TEST_F(TraceFiles, OfSeveralRanksStayApartWhereOneIsNotThere) {
  const std::vector<std::filesystem::path> parts = {root_ / "0", root_ / "1"};
  TraceFile(parts[0], 0, {0, 2, "rank 0 of 2"}).finish(events_, "a run");
  EXPECT_THROW(merge_traces(parts, path_), Error);
  std::ofstream(parts[1]) << "{}";
  EXPECT_THROW(merge_traces(parts, path_), Error);
  EXPECT_EQ(files_in(root_), 2u);
}

}  // namespace
}  // namespace terrace::trace_file_test
