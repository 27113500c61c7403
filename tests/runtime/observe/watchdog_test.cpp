// The watchdog against training steps whose requests are held back by a gate: whatever link stalls, one line
// names it, and nothing is stopped.
#include <terrace/runtime/observe/watchdog.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>

#include "offload/toy_training.h"
#include "support/fault_engine.h"

namespace terrace::watchdog_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kMostLooks = 4'000'000;

std::vector<std::string> texts(const MemoryLog& log) {
  std::vector<std::string> lines;
  for (const MemoryLog::Line& line : log.lines()) lines.push_back(line.text);
  return lines;
}

WaitSubject some_wait() {
  return {"gradients", "device -> host", TimeCause::device_copy, std::nullopt, nullptr, {}};
}

TEST(Watchdog, WarnsOnceAndThenEverMoreSeldom) {
  StepWatch watch;
  watch.set_activity("the update");
  MemoryLog log;
  Watchdog watchdog(watch, {.warn_after_ns = 60 * kSecond}, log);
  const uint64_t start = 1000 * kSecond;
  {
    const WatchedWait wait(watch, some_wait());
    for (uint64_t second = 0; second < 500; ++second) EXPECT_FALSE(watchdog.look(start + second * kSecond));
  }
  EXPECT_THAT(texts(log),
              ::testing::ElementsAre(AllOf(HasSubstr("no progress for 60 s: the update waits for gradients"),
                                           HasSubstr("is not stopped for this")),
                                     HasSubstr("no progress for 120 s"), HasSubstr("no progress for 240 s"),
                                     HasSubstr("no progress for 480 s")));
  EXPECT_FALSE(watchdog.look(start + 500 * kSecond));
  EXPECT_THAT(texts(log).back(), HasSubstr("goes on after 500 s"));
}

TEST(Watchdog, SaysNothingOfManyShortWaits) {
  StepWatch watch;
  MemoryLog log;
  Watchdog watchdog(watch, {.warn_after_ns = 60 * kSecond, .abort_after_ns = 90 * kSecond}, log);
  for (uint64_t second = 0; second < 1000; second += 40) {
    const WatchedWait wait(watch, some_wait());
    EXPECT_FALSE(watchdog.look(second * kSecond));
    EXPECT_FALSE(watchdog.look((second + 39) * kSecond));
  }
  EXPECT_TRUE(texts(log).empty());
}

TEST(Watchdog, AbortsOnlyWhenItWasTold) {
  StepWatch watch;
  MemoryLog log;
  Watchdog patient(watch, {}, log);
  Watchdog strict(watch, {.warn_after_ns = 60 * kSecond, .abort_after_ns = 90 * kSecond}, log);
  const WatchedWait wait(watch, some_wait());
  for (Watchdog* watchdog : {&patient, &strict}) {
    EXPECT_FALSE(watchdog->look(0));
    EXPECT_FALSE(watchdog->look(89 * kSecond));
  }
  EXPECT_FALSE(patient.look(90 * kSecond));
  EXPECT_TRUE(strict.look(90 * kSecond));
  EXPECT_THAT(texts(log).back(),
              AllOf(HasSubstr("no progress for 90 s"), HasSubstr("WatchdogOptions::abort_after_ns")));
}

// Time that stands still while the gate is closed and flies while it is open: a request that is delayed by a
// second waits for the gate. It begins open.
class Gate final : public Clock {
 public:
  uint64_t now_ns() const override {
    return open_.load() ? now_ns_.fetch_add(2 * kSecond) + 2 * kSecond : now_ns_.load();
  }
  void wait() { open_.wait(false); }
  void close() { open_.store(false); }
  void open() {
    open_.store(true);
    open_.notify_all();
  }

 private:
  mutable std::atomic<uint64_t> now_ns_{0};
  std::atomic<bool> open_{true};
};

// Which of the offloader's two engines answers late.
enum class Victim : uint32_t { step_engine = 0, reader = 1 };

// Trains the toy model, whose engine holds every request of the training until the gate opens, and returns
// what the watchdog says with `fragment` in it. Then the gate opens, and the training must end.
std::string line_about(Victim victim, const std::string& fragment) {
  const std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, false);
  const FlatSpace space(specs, kTileElements);
  const std::vector<TensorUse> uses = toy::trace(specs, 1);
  const ScratchFolder folder;
  OffloadOptions options = toy::least_nvme_options(space, uses, folder.path());
  Gate gate;
  uint32_t made = 0;
  options.hooks.decorate_engine = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    if (made++ != static_cast<uint32_t>(victim)) return engine;
    std::vector<io::Fault> plan = {
        {.index = io::kEveryIndex, .kind = io::FaultKind::delay, .delay_ns = kSecond}};
    return std::make_unique<io::FaultEngine>(std::move(engine), std::move(plan),
                                             io::FaultTime{&gate, [&](uint64_t) { gate.wait(); }});
  };
  MemoryLog log;
  Workers workers(1);
  SimulatedDevice device({options.device_budget_bytes});
  Offloader offloader(space, options, uses, device, workers, log);
  toy::initialise(offloader);
  gate.close();
  std::atomic<bool> ended{false};
  MemoryLog said;
  std::string found;
  // Looks a minute apart: a wait that two of them see is warned of. Ordinary waits may be as well; what is
  // held back is there to stay, so its line comes.
  std::thread looking([&] {
    Watchdog watchdog(offloader.report().watch(), {.warn_after_ns = 60 * kSecond}, said);
    for (uint64_t look = 0; look < kMostLooks && found.empty() && !ended; ++look) {
      watchdog.look(look * 60 * kSecond);
      for (const MemoryLog::Line& line : said.lines()) {
        if (line.text.find(fragment) != std::string::npos) found = line.text;
      }
      std::this_thread::yield();
    }
    gate.open();
  });
  const std::vector<OptimizerSettings> groups = toy::groups();
  for (uint64_t step = 1; step <= 2; ++step) {
    offloader.begin_step();
    toy::run_micro_batch(offloader, specs, 0);
    offloader.end_micro_batch();
    offloader.update({groups, step, 1.0});
  }
  ended = true;
  looking.join();
  return found;
}

TEST(Watchdog, NamesTheReadThatAnOperationWaitsFor) {
  EXPECT_THAT(line_about(Victim::reader, "(nvme -> host -> device): reading "),
              AllOf(HasSubstr("no progress for 60 s: mb0/"), HasSubstr("waits for parameters of chunk "),
                    HasSubstr(" at offset "), HasSubstr("terrace-tier/params.tier")));
}

TEST(Watchdog, NamesTheTransferThatTheUpdateWaitsFor) {
  EXPECT_THAT(line_about(Victim::step_engine, "the update waits for optimizer states of chunk "),
              AllOf(HasSubstr("no progress for 60 s: "), HasSubstr("(nvme -> host): reading "),
                    HasSubstr(" at offset "), HasSubstr("terrace-tier/records.tier")));
}

}  // namespace
}  // namespace terrace::watchdog_test
