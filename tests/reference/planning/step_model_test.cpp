// The time of planned steps, with rates that make it plain what it has to be.
#include <terrace/reference/planning/step_model.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <terrace/reference/planning/dry_training.h>

#include "reference/trainer_rig.h"

namespace terrace::step_model_test {
namespace {

using namespace trainer_tests;

constexpr double kOperationSeconds = 1;

// Three steps of a run, and how long the last of them takes.
class Planned {
 public:
  explicit Planned(const RunOptions& run, uint32_t ranks_on_host = 1)
      : options_(options_of(run)), workers_(1), setup_(plan_training(options_)) {
    options_.config.ranks_on_host = ranks_on_host;
    mode_ = *options_.config.terrace.update;
    DryTraining training(options_.config, setup_, mode_, workers_);
    for (int s = 0; s < 3; ++s) {
      PlannedStep step;
      step.moved = training.step();
      step.events = training.take_record();
      step.update_order = training.update_order();
      steps_.push_back(std::move(step));
    }
  }
  StepSeconds seconds(const MachineRates& rates) const { return seconds(rates, steps_); }
  StepSeconds seconds(const MachineRates& rates, std::span<const PlannedStep> steps) const {
    const auto a_second = [](std::string_view, uint64_t) { return OperationTime{kOperationSeconds, 0}; };
    const StepTimes times{rates, a_second};
    StepModel model({options_.config, setup_, mode_, times});
    StepSeconds last;
    for (const PlannedStep& step : steps) last = model.next(step);
    return last;
  }
  double compute_seconds() const { return kOperationSeconds * static_cast<double>(setup_.dry.trace.size()); }
  // With what fills their sections up.
  double trained_elements() const {
    const FlatSpace space(setup_.tensors, setup_.plan.chunk_elements);
    double elements = 0;
    for (const Section& section : space.sections())
      elements += section.trainable ? static_cast<double>(section.elements) : 0;
    return elements;
  }
  const OffloadCounters& moved() const { return steps_.back().moved; }
  // With other ranks in a step: gathers and exchanges, and the bytes of each in the direction that has more.
  double exchanges() const {
    double count = 0;
    for (const RecordedEvent& event : steps_.back().events) count += is_of_ranks(event) ? 1 : 0;
    return count;
  }
  double exchanged_bytes() const {
    double bytes = 0;
    for (const RecordedEvent& event : steps_.back().events)
      bytes += is_of_ranks(event) ? static_cast<double>(event.amount) : 0;
    return bytes;
  }

 private:
  static bool is_of_ranks(const RecordedEvent& event) {
    return event.kind == RecordedEvent::Kind::gather || event.kind == RecordedEvent::Kind::exchange;
  }

  TrainerOptions options_;
  Workers workers_;
  TrainingSetup setup_;
  UpdateMode mode_{};
  std::vector<PlannedStep> steps_;
};

MachineRates two_threads() {
  MachineRates rates;
  rates.thread_count = 2;
  return rates;
}

RunOptions in_host_memory() {
  RunOptions run;
  run.parameters = "cpu";
  return run;
}

// Beside two threads of the host a device that does all at once, over a link that takes no time.
MachineRates beside_device() {
  MachineRates rates = two_threads();
  rates.device.emplace();
  return rates;
}

void expect_parts_add_up(const StepSeconds& seconds) {
  EXPECT_NEAR(static_cast<double>(seconds.parts.total_ns()) * 1e-9, seconds.total(), 1e-5);
}

// The least host memory that holds every gradient: records stream.
RunOptions streaming(const std::string& update, const std::string& parameters) {
  RunOptions run;
  run.nvme = "/nowhere/at/all";
  run.parameters = parameters;
  run.update = update;
  run.host_memory = std::to_string(plan_training(options_of(run)).plan.memory.host_holding_bytes);
  return run;
}

TEST(StepModel, TakesWhatOperationsTakeWhereAllElseIsFree) {
  const Planned planned(in_host_memory());
  const StepSeconds seconds = planned.seconds(two_threads());
  EXPECT_NEAR(seconds.total(), planned.compute_seconds(), 1e-6);
  EXPECT_GT(seconds.forward, 0);
  EXPECT_GT(seconds.backward, seconds.forward);
}

// Each time a chunk comes to the device it takes its time of the step thread, whatever its bytes.
TEST(StepModel, TakesTimeForEveryChunkThatComes) {
  const Planned planned(in_host_memory());
  MachineRates rates = two_threads();
  rates.chunk_seconds = 0.5;
  const StepSeconds seconds = planned.seconds(rates);
  const double chunks = (seconds.total() - planned.compute_seconds()) / rates.chunk_seconds;
  EXPECT_GE(chunks + 1e-6, static_cast<double>(planned.moved().fetch_count));
  EXPECT_NEAR(chunks, std::round(chunks), 1e-6);
  EXPECT_NEAR(static_cast<double>(seconds.parts[TimeCause::overhead]) * 1e-9, chunks * rates.chunk_seconds,
              1e-5);
  expect_parts_add_up(seconds);
}

TEST(StepModel, IsBoundByALinkThatTakesLongerThanAllOperations) {
  const Planned planned(in_host_memory());
  MachineRates rates = two_threads();
  const auto most = static_cast<double>(std::max(planned.moved().h2d_bytes, planned.moved().d2h_bytes));
  const double link_seconds = 10 * planned.compute_seconds();
  rates.copy_bytes = most / link_seconds;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_GE(seconds.total(), link_seconds);
  EXPECT_LE(seconds.total(), 2 * link_seconds + 2 * planned.compute_seconds());
  EXPECT_GT(seconds.parts[TimeCause::device_copy], seconds.parts[TimeCause::compute]);
}

TEST(StepModel, HasTheDiskReadAndWriteEveryRecordAfterBackward) {
  const Planned planned(streaming("after_backward", ""));
  const auto bytes =
      static_cast<double>(planned.moved().record_read_bytes + planned.moved().record_write_bytes);
  ASSERT_GT(bytes, 0);
  MachineRates rates = two_threads();
  rates.disk_read_bytes = rates.disk_write_bytes = rates.disk_mixed_bytes = bytes / 100;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.update, 100, 1e-6);
  EXPECT_NEAR(seconds.total(), planned.compute_seconds() + 100, 1e-6);
}

// The forward pass goes on while the update streams, and the backward pass waits for its end.
TEST(StepModel, HidesAnUpdateInTheNextForward) {
  const Planned planned(streaming("next_forward", "cpu"));
  const auto bytes =
      static_cast<double>(planned.moved().record_read_bytes + planned.moved().record_write_bytes);
  MachineRates rates = two_threads();
  rates.disk_read_bytes = rates.disk_write_bytes = rates.disk_mixed_bytes = bytes / 2;
  const double short_one = planned.seconds(rates).total();
  EXPECT_LT(short_one, planned.compute_seconds() + 2);
  rates.disk_mixed_bytes = bytes / 1000;
  const StepSeconds long_one = planned.seconds(rates);
  EXPECT_NEAR(long_one.forward, 1000, planned.compute_seconds());
  EXPECT_LT(long_one.update, 1e-6);
}

TEST(StepModel, HasADeviceComputeAndTheProcessorUpdate) {
  const Planned planned(in_host_memory());
  MachineRates rates = beside_device();
  rates.update_together_elements = planned.trained_elements() / 7;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.update, 7, 1e-6);
  EXPECT_NEAR(seconds.total(), planned.compute_seconds() + 7, 1e-6);
  EXPECT_NEAR(seconds.device_busy, planned.compute_seconds(), 1e-6);
  EXPECT_NEAR(seconds.processor_busy, 7, 1e-6);
  expect_parts_add_up(seconds);
}

// What the host does with gradients that have landed takes none of the device's time, but for the last.
TEST(StepModel, SumsGradientsWhileADeviceComputes) {
  const Planned planned(in_host_memory());
  MachineRates rates = beside_device();
  const double sums = planned.compute_seconds() / 100;
  rates.sum_elements = static_cast<double>(planned.moved().d2h_bytes / sizeof(float)) / sums;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.processor_busy, sums, 1e-6);
  EXPECT_GT(seconds.total(), planned.compute_seconds());
  EXPECT_LT(seconds.total(), planned.compute_seconds() + sums);
  expect_parts_add_up(seconds);
}

TEST(StepModel, IsBoundByTheDirectionOfALinkThatIsSlow) {
  const Planned planned(in_host_memory());
  const double link_seconds = 10 * planned.compute_seconds();
  MachineRates rates = beside_device();
  rates.device->link.to_device = static_cast<double>(planned.moved().h2d_bytes) / link_seconds;
  const StepSeconds in = planned.seconds(rates);
  EXPECT_NEAR(in.copy_in_busy, link_seconds, 1e-6);
  EXPECT_EQ(in.copy_out_busy, 0);
  EXPECT_GE(in.total(), link_seconds - 1e-6);
  EXPECT_LE(in.total(), link_seconds + planned.compute_seconds());
  EXPECT_GT(in.parts[TimeCause::device_copy], in.parts[TimeCause::compute]);
  expect_parts_add_up(in);
  rates = beside_device();
  rates.device->link.to_host = static_cast<double>(planned.moved().d2h_bytes) / link_seconds;
  const StepSeconds out = planned.seconds(rates);
  EXPECT_NEAR(out.copy_out_busy, link_seconds, 1e-6);
  EXPECT_EQ(out.copy_in_busy, 0);
  EXPECT_GE(out.total(), link_seconds - 1e-6);
}

// What is copied while the device computes takes no time.
TEST(StepModel, HidesCopiesBehindWhatADeviceComputes) {
  RunOptions run = in_host_memory();
  run.device_memory = std::to_string(plan_training(options_of(run)).plan.memory.device_minimum_bytes * 3 / 2);
  const Planned planned(run);
  const double copies = planned.compute_seconds() / 20;
  MachineRates rates = beside_device();
  rates.device->link.to_device = static_cast<double>(planned.moved().h2d_bytes) / copies;
  rates.device->link.to_host = static_cast<double>(planned.moved().d2h_bytes) / copies;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.copy_in_busy, copies, 1e-6);
  EXPECT_NEAR(seconds.copy_out_busy, copies, 1e-6);
  EXPECT_GT(seconds.total(), planned.compute_seconds());
  EXPECT_LT(seconds.total(), planned.compute_seconds() + copies);
  expect_parts_add_up(seconds);
}

// Of one second of an operation, copies of 10 s alone, and the host that waits for the one to the device.
TEST(StepModel, HasCopiesFollowOperationsAndSlowEachOther) {
  using Kind = RecordedEvent::Kind;
  const Planned planned(in_host_memory());
  MachineRates rates = beside_device();
  rates.device->link = {.to_device = 100, .to_host = 100, .each_way = 50};
  PlannedStep step;
  step.events = {{Kind::attach, 1},         {Kind::begin_use, 0}, {Kind::ready, 0},
                 {Kind::end_use, 0},        {Kind::detach, 1},    {Kind::copy_in, 0, 1000},
                 {Kind::copy_out, 1, 1000}, {Kind::attach, 0},    {Kind::end_micro_batch},
                 {Kind::end_step}};
  const StepSeconds seconds = planned.seconds(rates, {&step, 1});
  EXPECT_NEAR(seconds.copy_in_busy, 10, 1e-6);        // from 0 on: nothing has used its slot
  EXPECT_NEAR(seconds.copy_out_busy, 5.5 + 9, 1e-6);  // from 1 on, for 9 s at half its rate
  EXPECT_NEAR(seconds.device_busy, 1, 1e-6);
  EXPECT_NEAR(seconds.total(), 15.5, 1e-6);
  EXPECT_NEAR(static_cast<double>(seconds.parts[TimeCause::compute]) * 1e-9, 1, 1e-6);
  EXPECT_NEAR(static_cast<double>(seconds.parts[TimeCause::device_copy]) * 1e-9, 14.5, 1e-6);
}

TEST(StepModel, HasADeviceUpdateWhatRestsThere) {
  const Planned planned({});
  MachineRates rates = beside_device();
  rates.device->update_elements = planned.trained_elements() / 5;
  rates.device->sum_elements = planned.trained_elements() / 2;
  rates.update_elements = rates.update_together_elements = 1;  // of the host, which has no part in it
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.update, 7, 1e-6);
  EXPECT_NEAR(seconds.total(), planned.compute_seconds() + 7, 1e-6);
  EXPECT_EQ(seconds.processor_busy, 0);
  expect_parts_add_up(seconds);
}

TEST(StepModel, IsBoundByTheDiskBesideADevice) {
  const Planned planned(streaming("after_backward", ""));
  MachineRates rates = beside_device();
  const auto bytes =
      static_cast<double>(planned.moved().record_read_bytes + planned.moved().record_write_bytes);
  rates.disk_read_bytes = rates.disk_write_bytes = rates.disk_mixed_bytes = bytes / 100;
  rates.update_elements = planned.trained_elements() / 20;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.update, 100, 1e-6);
  EXPECT_NEAR(seconds.disk_busy, 100, 1e-6);
  EXPECT_NEAR(seconds.total(), planned.compute_seconds() + 100, 1e-6);
  expect_parts_add_up(seconds);
}

Planned of_two_ranks(uint32_t on_host) {
  RunOptions run = in_host_memory();
  run.more = {{"terrace.ranks", "2", "--ranks"}};
  return Planned(run, on_host);
}

constexpr int kBallots = 1;  // of a step: the norm

TEST(StepModel, HasRanksExchangeOnALineOfTheirOwn) {
  const Planned planned = of_two_ranks(2);
  const OffloadCounters& moved = planned.moved();
  ASSERT_GT(planned.exchanges(), 0);
  EXPECT_GE(planned.exchanged_bytes(), static_cast<double>(moved.gather_in_bytes + moved.exchange_in_bytes));
  EXPECT_GE(planned.exchanged_bytes(),
            static_cast<double>(moved.gather_out_bytes + moved.exchange_out_bytes));
  MachineRates rates = two_threads();
  EXPECT_NEAR(planned.seconds(rates).total(), planned.compute_seconds(), 1e-6);

  rates.rank_bytes = planned.exchanged_bytes() / (100 * planned.compute_seconds());
  const StepSeconds by_bytes = planned.seconds(rates);
  EXPECT_NEAR(by_bytes.ranks.seconds.total(), 100 * planned.compute_seconds(), 1e-6);
  EXPECT_EQ(by_bytes.ranks.seconds.latency(), 0);
  EXPECT_GT(by_bytes.total(), 90 * planned.compute_seconds());
  EXPECT_GT(by_bytes.parts[TimeCause::ranks], by_bytes.parts[TimeCause::compute]);
  expect_parts_add_up(by_bytes);

  rates.rank_bytes = 0;
  rates.rank_seconds = 3;
  const StepSeconds by_messages = planned.seconds(rates);
  EXPECT_NEAR(by_messages.ranks.seconds.total(), 3 * (planned.exchanges() + kBallots), 1e-6);
  EXPECT_EQ(by_messages.ranks.seconds.latency(), by_messages.ranks.seconds.total());
}

// A rank of another host is reached by the network's rates.
TEST(StepModel, TakesTheNetworkBetweenHosts) {
  const Planned planned = of_two_ranks(1);
  MachineRates rates = two_threads();
  rates.rank_bytes = 1;  // none is on this host
  rates.network_bytes = planned.exchanged_bytes() / 1000;
  rates.network_seconds = 2;
  const StepSeconds seconds = planned.seconds(rates);
  EXPECT_NEAR(seconds.ranks.seconds.latency(), 2 * (planned.exchanges() + kBallots), 1e-6);
  EXPECT_NEAR(seconds.ranks.seconds.bytes(), 1000, 1e-6);
}

}  // namespace
}  // namespace terrace::step_model_test
