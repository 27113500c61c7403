#include <terrace/offload/lease/activation_store.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>

namespace terrace::activation_store_test {
namespace {

constexpr uint64_t kEntryBytes = 8192;
constexpr uint64_t kEntryFloats = kEntryBytes / sizeof(float);

class HostActivationsTest : public ::testing::Test {
 protected:
  std::span<float> work(uint64_t first, uint64_t count) {
    return {reinterpret_cast<float*>(work_.data()) + first, count};
  }

  SimulatedDevice device_{{.budget_bytes = 64 * kKiB}};
  std::span<std::byte> work_ = device_.allocate_work_memory(64 * kKiB);
  std::vector<std::byte> host_ = std::vector<std::byte>(3 * kEntryBytes);
  StepWatch watch_;
  HostActivations store_{host_, kEntryBytes, device_, watch_};
};

TEST_F(HostActivationsTest, GivesEveryEntryBackAsItWasPut) {
  for (uint32_t entry = 0; entry < 3; ++entry) {
    const std::span<float> values = work(entry * kEntryFloats, kEntryFloats - entry);
    std::iota(values.begin(), values.end(), 1000.0f * static_cast<float>(entry));
    store_.start_put(entry, values);
    store_.wait(entry);
  }
  std::fill(work_.begin(), work_.end(), std::byte{0});
  for (uint32_t entry = 3; entry-- > 0;) {
    const std::span<float> values = work(0, kEntryFloats - entry);
    store_.start_get(entry, values);
    store_.wait(entry);
    for (uint64_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], 1000.0f * static_cast<float>(entry) + static_cast<float>(i)) << entry << " " << i;
    }
  }
  EXPECT_EQ(store_.d2h_bytes(), 3 * kEntryBytes - 3 * sizeof(float));
  EXPECT_EQ(store_.h2d_bytes(), store_.d2h_bytes());
  EXPECT_EQ(device_.d2h_bytes(), store_.d2h_bytes());
  EXPECT_EQ(device_.h2d_bytes(), store_.h2d_bytes());
}

TEST_F(HostActivationsTest, RefusesWhatWasNotPlanned) {
  EXPECT_DEATH(store_.start_put(3, work(0, 1)), "activation 3 of 3");
  EXPECT_DEATH(store_.start_put(0, work(0, kEntryFloats + 1)), "were planned");
  EXPECT_DEATH(store_.start_get(1, work(0, 1)), "has 0 bytes");
}

TEST_F(HostActivationsTest, MovesWorkMemoryOnly) {
  std::vector<float> elsewhere(4);
  EXPECT_DEATH(store_.start_put(0, elsewhere), "not all work memory");
}

TEST(ActivationRecorder, LearnsHowMuchRoomIsNeeded) {
  ActivationRecorder recorder;
  recorder.start_put(0, std::span<const float>(static_cast<const float*>(nullptr), 10));
  recorder.start_put(4, std::span<const float>(static_cast<const float*>(nullptr), 3));
  EXPECT_EQ(recorder.entry_count(), 5u);
  EXPECT_EQ(recorder.entry_bytes(), 40u);
}

}  // namespace
}  // namespace terrace::activation_store_test
