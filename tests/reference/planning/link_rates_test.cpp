// How fast bytes cross a link, as far as a link can be played.
#include <terrace/reference/planning/link_rates.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>

namespace terrace::link_rates_test {
namespace {

constexpr double kToDevice = 3e9;
constexpr double kToHost = 6e8;

// A simulated device whose link has these rates.
class SlowLink final : public ComputeDevice {
 public:
  ComputeFacts facts() const override { return {.granularity_bytes = 64 * kKiB}; }
  std::unique_ptr<Ops> make_dry_ops(Workers& workers) const override { return host_.make_dry_ops(workers); }
  std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool, Workers& workers) const override {
    return std::make_unique<SlowComputing>(host_.begin(page_bytes(), false, workers), budget_bytes);
  }

 private:
  class SlowComputing final : public Computing {
   public:
    SlowComputing(std::unique_ptr<Computing> host, uint64_t budget_bytes)
        : host_(std::move(host)),
          device_({.budget_bytes = budget_bytes,
                   .h2d_bytes_per_second = static_cast<uint64_t>(kToDevice),
                   .d2h_bytes_per_second = static_cast<uint64_t>(kToHost)}) {}
    Device& device() override { return device_; }
    const Ops& ops() const override { return host_->ops(); }
    void wait() override { host_->wait(); }
    DeviceArithmetic* arithmetic() override { return nullptr; }

   private:
    const std::unique_ptr<Computing> host_;
    SimulatedDevice device_;
  };
  SimulatedCompute host_;
};

// No faster than the link is, and both ways no faster than the slower one. How much slower they are depends
// on what else the machine does.
TEST(LinkRates, AreThoseOfTheLink) {
  Workers workers(1);
  const LinkRates rates = measure_link_rates(SlowLink(), true, workers);
  EXPECT_LE(rates.to_device, kToDevice * 1.1);
  EXPECT_LE(rates.to_host, kToHost * 1.1);
  EXPECT_LE(rates.each_way, kToHost * 1.1);
  EXPECT_GT(std::min({rates.to_device, rates.to_host, rates.each_way}), 0);
}

}  // namespace
}  // namespace terrace::link_rates_test
