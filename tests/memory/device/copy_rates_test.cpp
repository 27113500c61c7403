#include <terrace/memory/device/copy_rates.h>

#include <algorithm>
#include <string>

#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>

namespace terrace::copy_rates_test {
namespace {

std::span<std::byte> part(std::vector<std::byte>& memory, size_t index) {
  const size_t bytes = memory.size() / 2;
  return std::span(memory).subspan(index * bytes, bytes);
}

// Takes a microsecond for every copy, and writes down that it ran.
class NotedWay final : public CopyWay {
 public:
  NotedWay(std::string name, std::vector<std::string>& notes) : name_(std::move(name)), notes_(notes) {}
  uint64_t run_ns(const CopyRun& run) override {
    notes_.push_back(name_ + " " + std::to_string(run.bytes) + " x " + std::to_string(run.count));
    return 1000 * run.count;
  }

 private:
  const std::string name_;
  std::vector<std::string>& notes_;
};

TEST(CopyRates, MeasuresBothWaysOfEverythingInEveryRoundAndTheFirstForNothing) {
  std::vector<std::byte> memory(32 * kKiB);
  const std::vector<HostMemoryKind> memories = {{"one", {part(memory, 0), part(memory, 1)}},
                                                {"other", {part(memory, 1), part(memory, 0)}}};
  const CopyPlan plan{
      .sizes = {kKiB, 16 * kKiB}, .buffer_bytes = 16 * kKiB, .moved_bytes = 64 * kKiB, .rounds = 2};
  std::vector<std::string> notes;
  NotedWay streams("streams", notes), plain("plain", notes);
  std::vector<uint64_t> rounds;
  const std::vector<CopyMeasurement> results =
      measure_copies(plan, memories, streams, plain, [&](uint64_t round) { rounds.push_back(round); });
  EXPECT_EQ(rounds, (std::vector<uint64_t>{0, 1, 2}));
  ASSERT_EQ(results.size(), 2u * 2 * 3);
  EXPECT_EQ(results[4].memory, "other");
  EXPECT_EQ(results[5].directions, CopyDirections::both);
  EXPECT_EQ(results[6].bytes, 16 * kKiB);
  for (const CopyMeasurement& result : results) {
    const double directions = result.directions == CopyDirections::both ? 2 : 1;
    const std::vector<double> speeds(2, directions * static_cast<double>(result.bytes) * 1e6);
    EXPECT_EQ(result.stream_bytes_per_second, speeds);
    EXPECT_EQ(result.plain_bytes_per_second, speeds);
  }
  ASSERT_EQ(notes.size(), 3u * 12 * 2);
  EXPECT_EQ(notes[0], "streams 1024 x 64");
  EXPECT_EQ(notes[1], "plain 1024 x 64");
  EXPECT_EQ(notes[24], "plain 1024 x 64");  // the first in every other round
  EXPECT_EQ(notes[25], "streams 1024 x 64");
  EXPECT_EQ(notes.back(), "plain 16384 x 4");
}

TEST(CopyRates, CopiesOfASimulatedDeviceArriveAndAreCounted) {
  constexpr uint64_t kBuffer = 64 * kKiB;
  std::vector<std::byte> memory(2 * kBuffer, std::byte{7});
  const CopyBuffers host{part(memory, 0), part(memory, 1)};
  const CopyPlan plan{.sizes = {}, .buffer_bytes = kBuffer};
  SimulatedDevice device({.budget_bytes = plan.device_bytes(page_bytes())});
  StreamCopies streams(device, kBuffer);
  const CopyBuffers work{device.allocate_work_memory(kBuffer), device.allocate_work_memory(kBuffer)};
  EXPECT_EQ(device.used_bytes(), device.budget_bytes());
  const std::unique_ptr<CopyWay> plain = make_plain_memory_copies(work);
  EXPECT_GT(streams.run_ns({CopyDirections::both, host, 16 * kKiB, 6}), 0u);
  EXPECT_EQ(device.h2d_bytes(), 6 * 16 * kKiB);
  EXPECT_EQ(device.d2h_bytes(), 6 * 16 * kKiB);
  EXPECT_EQ(host.to_host[kBuffer - 1], std::byte{0});  // as fresh slots are
  EXPECT_GT(streams.run_ns({CopyDirections::to_device, host, kBuffer, 1}), 0u);
  EXPECT_EQ(device.d2h_bytes(), 6 * 16 * kKiB);

  std::fill(work.to_host.begin(), work.to_host.end(), std::byte{9});
  EXPECT_GT(plain->run_ns({CopyDirections::both, host, 16 * kKiB, 4}), 0u);
  EXPECT_EQ(host.to_host[kBuffer - 1], std::byte{9});
  EXPECT_TRUE(std::equal(work.to_device.begin(), work.to_device.end(), host.to_device.begin()));
  EXPECT_EQ(device.h2d_bytes(), 6 * 16 * kKiB + kBuffer);  // no copies of the device's
}

}  // namespace
}  // namespace terrace::copy_rates_test
