#include <terrace/runtime/observe/monitor/monitor.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/monitor/internal/crc32c.h>

#include "support/scratch_folder.h"

namespace terrace::monitor_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The polynomial division, bit by bit.
uint32_t plain_crc(std::string_view bytes) {
  uint32_t value = 0xffffffffu;
  for (const char c : bytes) {
    value ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (0x82f63b78u & (0u - (value & 1)));
  }
  value = ~value;
  return ((value >> 15) | (value << 17)) + 0xa282ead8u;
}

template <typename T>
T fixed(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// A protocol buffer message: its fields in order, numbers as the bytes they have.
using Fields = std::vector<std::pair<uint32_t, std::string>>;

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(bytes.at(0));
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

Fields fields_of(std::string_view bytes) {
  Fields fields;
  while (!bytes.empty()) {
    const uint64_t key = take_varint(bytes);
    size_t length = 0;
    if (key % 8 == 0) {
      fields.emplace_back(key / 8, std::to_string(take_varint(bytes)));
      continue;
    }
    length = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : take_varint(bytes);
    fields.emplace_back(key / 8, std::string(bytes.substr(0, length)));
    bytes.remove_prefix(length);
  }
  return fields;
}

// The messages of an event file, its checksums checked.
std::vector<Fields> events_of(const fs::path& path) {
  const std::string text = read(path);
  std::string_view bytes = text;
  std::vector<Fields> events;
  while (!bytes.empty()) {
    const uint64_t length = fixed<uint64_t>(bytes);
    EXPECT_EQ(fixed<uint32_t>(bytes.substr(8)), plain_crc(bytes.substr(0, 8)));
    const std::string_view data = bytes.substr(12, length);
    EXPECT_EQ(fixed<uint32_t>(bytes.substr(12 + length)), plain_crc(data));
    events.push_back(fields_of(data));
    bytes.remove_prefix(length + 16);
  }
  return events;
}

fs::path only_event_file(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) paths.push_back(entry.path());
  }
  EXPECT_EQ(paths.size(), 1u);
  return paths.at(0);
}

TrainConfig config_for(const ScratchFolder& folder, bool tensorboard, bool csv) {
  TrainConfig config;
  config.monitor.tensorboard = {tensorboard, folder.path(), "tb"};
  config.monitor.csv = {csv, folder.path(), "csv"};
  return config;
}
MonitorSettings settings_for(const ScratchFolder& folder, bool tensorboard, bool csv) {
  return monitor_settings(config_for(folder, tensorboard, csv));
}

UpdateScalars scalars(uint64_t samples) {
  UpdateScalars values;
  values.samples = samples;
  values.loss = 2.5;
  values.learning_rate = 1e-5;
  values.gradient_norm = 0.25;
  values.loss_scale = 65536;
  values.forward_seconds = 0.5;
  values.backward_seconds = 1;
  values.update_seconds = 0.125;
  return values;
}

TEST(Monitor, ChecksumsAreCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(masked_crc32c("123456789"), plain_crc("123456789"));
}

TEST(Monitor, WritesEventsThatCanBeReadBack) {
  const ScratchFolder folder;
  Monitor monitor(settings_for(folder, true, false), {0, false, 1700000000.5});
  monitor.update(scalars(300), 1700000001.25);
  monitor.evaluation(300, 3.5, 1700000002);
  const std::vector<Fields> events = events_of(only_event_file(folder / "tb"));
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0][2], std::make_pair(3u, std::string("brain.Event:2")));
  const Fields& rate = events[2];
  ASSERT_EQ(rate.size(), 3u);
  EXPECT_EQ(fixed<double>(rate[0].second), 1700000001.25);
  EXPECT_EQ(rate[1], std::make_pair(2u, std::string("300")));
  EXPECT_EQ(rate[2].first, 5u);
  const Fields summary = fields_of(rate[2].second);
  ASSERT_EQ(summary.size(), 1u);
  const Fields value = fields_of(summary[0].second);
  EXPECT_EQ(value[0], std::make_pair(1u, std::string("Train/Samples/lr")));
  EXPECT_EQ(value[1].first, 2u);
  EXPECT_EQ(fixed<float>(value[1].second), 1e-5f);
  EXPECT_THAT(events[4][2].second, HasSubstr("Validation/Samples/loss"));
}

TEST(Monitor, BeginsAResumedRunWithAFileThatSortsBehindAndDropsWhatCameLater) {
  const ScratchFolder folder;
  const TrainConfig config = config_for(folder, true, false);
  const std::string tb = folder / "tb";
  { Monitor monitor(monitor_settings(config), {0, false, 1700000000}); }
  const fs::path first = only_event_file(tb);
  const std::string before = read(first);
  { Monitor monitor(monitor_settings(config), {8, true, 1600000000}); }  // a clock that went back
  EXPECT_EQ(read(first), before);
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(tb)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0], first);
  const std::vector<Fields> events = events_of(paths[1]);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1][1], std::make_pair(2u, std::string("9")));
  EXPECT_EQ(fields_of(events[1][2].second), (Fields{{1, "1"}}));
}

TEST(Monitor, WritesACsvFilePerTagAsDeepSpeedLaysThemOut) {
  const ScratchFolder folder;
  Monitor monitor(settings_for(folder, false, true), {});
  monitor.update(scalars(4), 0);
  monitor.update(scalars(8), 0);
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder / "csv"))
    files[entry.path().filename().string()] = read(entry.path());
  EXPECT_THAT(files,
              UnorderedElementsAre(
                  Pair("Train_Samples_train_loss.csv", "step,train_loss\r\n4,2.5\r\n8,2.5\r\n"),
                  Pair("Train_Samples_lr.csv", "step,lr\r\n4,1e-05\r\n8,1e-05\r\n"),
                  Pair("Train_Samples_gradient_norm.csv", "step,gradient_norm\r\n4,0.25\r\n8,0.25\r\n")));
}

TEST(Monitor, ShowsTheLossScaleAndTheTimesWhereTheyAreWanted) {
  const ScratchFolder folder;
  TrainConfig config = config_for(folder, false, true);
  config.precision = DataType::fp16;
  config.wall_clock_breakdown = true;
  Monitor monitor(monitor_settings(config), {});
  UpdateScalars skipped = scalars(4);
  skipped.skipped = true;
  monitor.update(skipped, 0);
  const fs::path csv = folder / "csv";
  EXPECT_EQ(read(csv / "Train_Samples_loss_scale.csv"), "step,loss_scale\r\n4,65536\r\n");
  EXPECT_EQ(read(csv / "Train_Samples_elapsed_time_ms_forward.csv"),
            "step,elapsed_time_ms_forward\r\n4,500\r\n");
  EXPECT_EQ(read(csv / "Train_Samples_elapsed_time_ms_backward.csv"),
            "step,elapsed_time_ms_backward\r\n4,1000\r\n");
  EXPECT_EQ(read(csv / "Train_Samples_elapsed_time_ms_step.csv"), "step,elapsed_time_ms_step\r\n4,125\r\n");
  EXPECT_FALSE(fs::exists(csv / "Train_Samples_gradient_norm.csv"));
}

TEST(Monitor, CutsOffWhatAResumedRunWritesAgain) {
  const ScratchFolder folder;
  const TrainConfig config = config_for(folder, false, true);
  const fs::path lr = folder / "csv/Train_Samples_lr.csv";
  {
    Monitor monitor(monitor_settings(config), {});
    for (uint64_t samples : {4, 8, 12, 16}) monitor.update(scalars(samples), 0);
    monitor.evaluation(8, 3, 0);
  }
  std::ofstream(lr, std::ios::app) << "20,1e-0";  // a line that a crash cut
  std::ofstream(folder / "csv/own.csv") << "a,b\n99,1\n";
  {
    Monitor monitor(monitor_settings(config), {8, true, 0});
    monitor.evaluation(8, 3, 0);
    monitor.update(scalars(12), 0);
  }
  EXPECT_EQ(read(lr), "step,lr\r\n4,1e-05\r\n8,1e-05\r\n12,1e-05\r\n");
  EXPECT_EQ(read(folder / "csv/Validation_Samples_loss.csv"), "step,loss\r\n8,3\r\n");
  EXPECT_EQ(read(folder / "csv/own.csv"), "a,b\n99,1\n");
}

TEST(Monitor, DropsAHalfWrittenLineAtTheEndOfWhatStays) {
  const ScratchFolder folder;
  folder.write("csv/Train_Samples_lr.csv", "step,lr\r\n4,1e-05\r\n8,1");
  Monitor monitor(settings_for(folder, false, true), {100, true, 0});
  monitor.update(scalars(104), 0);
  EXPECT_EQ(read(folder / "csv/Train_Samples_lr.csv"), "step,lr\r\n4,1e-05\r\n104,1e-05\r\n");
}

TEST(Monitor, RefusesToMixTwoRuns) {
  const ScratchFolder folder;
  for (const bool tensorboard : {true, false}) {
    const TrainConfig config = config_for(folder, tensorboard, !tensorboard);
    require_empty_monitors(config.monitor);
    {
      Monitor monitor(monitor_settings(config), {});
      monitor.update(scalars(4), 0);
    }
    try {
      Monitor(monitor_settings(config), {});
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_THAT(error.what(), HasSubstr("of two runs would be mixed"));
      EXPECT_THAT(error.what(), HasSubstr("resume the run"));
    }
    EXPECT_THROW(require_empty_monitors(config.monitor), Error);
  }
}

TEST(Monitor, TellsAListenerWhatTheFilesGet) {
  const ScratchFolder folder;
  std::vector<std::string> heard;
  MonitorSettings settings = settings_for(folder, false, false);
  settings.listener = [&](const ScalarEvent& event) {
    for (const Scalar& scalar : event.scalars)
      heard.push_back(fmt::format("{} {} {}", event.samples, scalar.tag, scalar.value));
  };
  Monitor monitor(settings, {.samples = 4, .resumed = true});
  monitor.evaluation(4, 0.75, 0);  // the earlier run has told it
  UpdateScalars skipped = scalars(8);
  skipped.skipped = true;
  monitor.update(skipped, 0);
  monitor.evaluation(8, 0.5, 0);
  EXPECT_THAT(heard, ElementsAre("8 Train/Samples/train_loss 2.5", "8 Train/Samples/lr 1e-05",
                                 "8 Validation/Samples/loss 0.5"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Monitor, TouchesNothingWhileItIsSwitchedOff) {
  const ScratchFolder folder;
  Monitor monitor(settings_for(folder, false, false), {});
  monitor.update(scalars(4), 0);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Monitor, SaysWhereItCannotWrite) {
  const ScratchFolder folder;
  folder.write("csv", "a file in the place of the folder");
  EXPECT_THROW(Monitor(settings_for(folder, false, true), {}), Error);
}

}  // namespace
}  // namespace terrace::monitor_test
