// The page of a run as a file: what is in it is the run's, whatever texts say and however long the run was.
// What a browser makes of it, tests/tools/report_page looks at.
#include <terrace/runtime/observe/page/report_page.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <terrace/base/clock.h>
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/observe/control/job_status.h>
#include <terrace/runtime/observe/page/picture_json.h>
#include <terrace/runtime/observe/page/report_file.h>
#include <terrace/runtime/observe/page/report_json.h>

#include "sample_picture.h"
#include "sample_steps.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::report_page_test {
namespace {

using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::sample_step;
using testing::SampleRun;

constexpr const char* kHostile = "</script><img src=x onerror=alert(1)>&amp;<!--\xff\"\\\n";

size_t count_of(std::string_view text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

JsonNode parsed(const RunRecord& record) {
  return parse_json(report_json(record, 1'700'000'000), "page");
}
const JsonNode& at(const JsonNode& node, std::string_view key) {
  const JsonNode* found = node.find(key);
  if (found == nullptr) throw std::runtime_error("no member " + std::string(key));
  return *found;
}
const JsonNode& at(const JsonNode&& node,
                   std::string_view key) = delete;  // what it gives would go with the node

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A run with a text wherever one can be.
void fill(SampleRun& run, const std::string& text) {
  RunHeader header;
  header.version = header.model = text;
  header.facts = header.machine = {{text, text}};
  header.configuration = {{text, json_quoted(text), text, text}};
  header.prediction.emplace();
  header.prediction->tiers = {{text, 1, 1, {{text, 1}}}};
  header.prediction->rates = {{text, 1, text, text}};
  run.log.start(header);
  run.log.memory(1, {.tiers = {{text, 1, text, 1, 1, 1, {{text, 1}}}},
                     .paths = {{text, 1, 1, 1}},
                     .bound = {},
                     .commits = {},
                     .process_bytes = 1});
  run.checkpoint(1, text);
  run.said.warning(text);
  run.log.ended({.step = 1, .failed = true, .stopped_by = text, .survives = text});
}

TEST(ReportPage, NoTextCanEndTheElementThatHoldsIt) {
  SampleRun usual;
  fill(usual, "plain");
  const std::string plain = report_page(usual.record, 0);
  SampleRun hostile;
  fill(hostile, kHostile);
  const std::string page = report_page(hostile.record, 0);
  for (const char* mark : {"<script", "</script", "<img", "<!--", "onerror=alert(1)>"})
    EXPECT_EQ(count_of(page, mark), count_of(plain, mark)) << mark;
  // It comes back as it was but for the byte that is no UTF-8.
  const JsonNode document = parsed(hostile.record);
  const std::string& model = at(at(document, "header"), "model").text;
  EXPECT_EQ(model, "</script><img src=x onerror=alert(1)>&amp;<!--\xEF\xBF\xBD\"\\\n");
}

TEST(ReportPage, AsksForNothingAndForbidsItselfTo) {
  const std::string page = report_page(RunRecord(), 0);
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* word :
       {"http://", "https://", "url(", "@import", "fetch(", "XMLHttpRequest", "import(", "innerHTML"}) {
    const bool is_namespace = std::string_view(word) == "http://";
    EXPECT_EQ(count_of(page, word), is_namespace ? count_of(page, "http://www.w3.org/2000/svg") : 0) << word;
  }
}

TEST(ReportPage, HasTheNumbersOfTheSteps) {
  SampleRun run;
  const RunRecord& record = run.record;
  for (uint64_t step = 1; step <= 3; ++step) run.log.step_done(sample_step(step));
  StepReport overflow = sample_step(4);
  overflow.loss = std::numeric_limits<double>::quiet_NaN();
  overflow.gradient_norm = std::numeric_limits<double>::infinity();
  overflow.skipped = true;
  run.log.step_done(overflow);
  run.log.evaluated(4, 2.5);
  run.log.memory(4,
                 {.tiers = {}, .paths = {}, .bound = {.h2d_bytes = 42}, .commits = {}, .process_bytes = 1});
  const JsonNode page = parsed(record);
  const JsonNode& totals = at(page, "totals");
  EXPECT_EQ(json_whole_number(totals, "steps"), 4u);
  EXPECT_EQ(json_whole_number(totals, "total_ns"), record.all().total_ns);
  uint64_t sum = 0;
  for (const JsonNode& cause : at(totals, "causes").items) sum += std::stoull(cause.text);
  EXPECT_EQ(sum, record.all().total_ns);
  EXPECT_EQ(at(totals, "links").items[0].text, std::to_string(record.all().moved.h2d_bytes));
  EXPECT_EQ(json_whole_number(at(page, "links").items[0], "least"), 42u);
  EXPECT_TRUE(at(at(page, "last_step"), "loss").is(JsonNode::Kind::null));
  const JsonNode& losses = at(at(at(page, "series"), "loss"), "mean");
  ASSERT_EQ(losses.items.size(), 4u);
  EXPECT_EQ(losses.items[1].number, sample_step(2).loss);
  EXPECT_TRUE(losses.items[3].is(JsonNode::Kind::null));
}

TEST(ReportPage, OfARunOfAnyLengthIsBelowThreeMebibytes) {
  SampleRun run;
  const RunRecord& record = run.record;
  const std::string path(200, 'p');
  for (uint64_t step = 1; step <= 100'000; ++step) {
    run.log.step_done(sample_step(step));
    run.log.evaluated(step, 1 / static_cast<double>(step));
    run.commit(step);
    run.checkpoint(step, path + std::to_string(step));
    run.said.warning(std::string(700, 'w') + std::to_string(step));
  }
  run.log.picture(4, picture_json(*testing::sample_picture(10'000)));
  ASSERT_FALSE(record.picture().empty());
  const std::string page = report_page(record, 0);
  EXPECT_LT(page.size(), 3 * kMiB);
  const JsonNode document = parsed(record);
  const JsonNode& series = at(document, "series");
  EXPECT_EQ(json_whole_number(series, "steps_per_point"), 128u);
}

TEST(ReportFile, TakesThePlaceOfThePageAsAWhole) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "run.html";
  const FakeClock clock;
  ReportFile file(path, clock);
  SampleRun run;
  run.start("first");
  file.write(run.record, 0);
  EXPECT_THAT(read(path), HasSubstr("\"first\""));
  run.start("second");
  file.write(run.record, 0);
  EXPECT_THAT(read(path), Not(HasSubstr("\"first\"")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// Every look at it takes a while, so that writing does.
class SlowClock final : public Clock {
 public:
  explicit SlowClock(uint64_t look_ns) : look_ns_(look_ns) {}
  uint64_t now_ns() const override { return now_ns_ += look_ns_; }
  void advance(uint64_t ns) { now_ns_ += ns; }

 private:
  const uint64_t look_ns_;
  mutable uint64_t now_ns_ = 0;
};

TEST(ReportFile, IsDueAfterAPauseThatGrowsWithWhatItCosts) {
  const ScratchFolder folder;
  FakeClock clock;
  ReportFile cheap(folder / "cheap.html", clock);
  EXPECT_TRUE(cheap.is_due());
  cheap.write(RunRecord(), 0);
  clock.advance(ReportFile::kLeastPauseNs - 1);
  EXPECT_FALSE(cheap.is_due());
  clock.advance(1);
  EXPECT_TRUE(cheap.is_due());

  constexpr uint64_t kCostNs = 1'000'000'000;
  SlowClock slow(kCostNs);
  ReportFile dear(folder / "dear.html", slow);
  dear.write(RunRecord(), 0);
  slow.advance((ReportFile::kShare - 1) * kCostNs - 2 * kCostNs);
  EXPECT_FALSE(dear.is_due());
  EXPECT_TRUE(dear.is_due());
}

TEST(ReportFile, SaysWhatItCannotWrite) {
  const ScratchFolder folder;
  const FakeClock clock;
  const RunRecord record;
  for (const std::filesystem::path& path : {folder / "nowhere/run.html", folder.path()}) {
    ReportFile file(path, clock);
    expect_error(ErrorKind::io, {"cannot write the report", path, "name a file"},
                 [&] { file.write(record, 0); });
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace terrace::report_page_test
