#include <terrace/reference/pass_timer.h>

#include <gtest/gtest.h>

#include <terrace/base/clock.h>

namespace terrace::pass_timer_test {
namespace {

// Every use takes ten nanoseconds.
class SlowParameters final : public ParameterAccess {
 public:
  explicit SlowParameters(FakeClock& clock) : clock_(clock) {}
  void begin_use(std::string_view, std::span<const TensorId>, UseKind) override { clock_.advance(10); }
  void end_use() override { ++ended_uses; }
  const std::byte* parameter(TensorId) const override { return nullptr; }
  GradientView gradient(TensorId) override { return {}; }

  int ended_uses = 0;

 private:
  FakeClock& clock_;
};

TEST(PassTimer, CountsUntilTheFirstBackwardUseOfEveryMicroBatch) {
  FakeClock clock;
  SlowParameters parameters(clock);
  std::vector<uint64_t> use_ns;
  PassTimer timer(parameters, clock, use_ns);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    timer.begin_micro_batch();
    for (const UseKind kind : {UseKind::forward, UseKind::forward, UseKind::backward, UseKind::backward})
      Lease(timer, "use", {}, kind);
    clock.advance(1000);
  }
  EXPECT_EQ(timer.forward_ns(), 40u);
  EXPECT_EQ(parameters.ended_uses, 8);
}

TEST(PassTimer, CountsOfEachUseWhatItComputesAndNotWhatItWaits) {
  FakeClock clock;
  SlowParameters parameters(clock);
  std::vector<uint64_t> use_ns;
  PassTimer timer(parameters, clock, use_ns);
  timer.begin_micro_batch();
  for (const uint64_t computes : {5u, 7u}) {
    const Lease lease(timer, "use", {}, UseKind::forward);
    clock.advance(computes);
  }
  EXPECT_EQ(use_ns, (std::vector<uint64_t>{5, 7}));
}

}  // namespace
}  // namespace terrace::pass_timer_test
