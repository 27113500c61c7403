// Updates beside the step thread, where gradients are spilled: what the disk is asked for, and when.
#include <gtest/gtest.h>

#include "offload/gradients/spill_rig.h"
#include "offload/offloader_rig.h"

namespace terrace::spill_read_ahead_test {
namespace {

// With room on the device for all, and for no gradient on the host.
Case spilling(UpdateMode mode) {
  Case c{Placement::nvme, Placement::nvme};
  c.tight = false;
  c.spills = true;
  c.mode = mode;
  return c;
}

OffloadCounters moved_by_two_steps(const Case& c) {
  Rig rig(c);
  EXPECT_GT(rig.offloader->plan().spilled_chunks, 0u);
  for (uint64_t step = 1; step <= 3; ++step) rig.step(step, 1);
  const OffloadCounters before = rig.offloader->report().counters();
  rig.step(4, 1);
  rig.step(5, 1);
  rig.offloader->finish_update();
  return rig.offloader->report().counters() - before;
}

// What an update writes to nvme is fetched behind it, no later than where it is there already.
TEST(SpillReadAhead, FetchesParametersBehindTheirUpdateAheadOfTheirUse) {
  const OffloadCounters after = moved_by_two_steps(spilling(UpdateMode::after_backward));
  const OffloadCounters next = moved_by_two_steps(spilling(UpdateMode::next_forward));
  EXPECT_EQ(next.fetch_count, after.fetch_count);
  EXPECT_LT(after.demand_fetch_count, after.fetch_count);
  EXPECT_EQ(next.demand_fetch_count, after.demand_fetch_count);
  EXPECT_EQ(next.param_read_bytes, after.param_read_bytes);
}

TEST(SpillReadAhead, FetchesWithoutAnUpdateAfterOneThatWasExpected) {
  Rig rig(spilling(UpdateMode::next_forward));
  Reference reference(rig.specs, 1);
  const UpdateMode modes[] = {UpdateMode::next_forward,    UpdateMode::after_backward,
                              UpdateMode::after_backward,  UpdateMode::next_forward,
                              UpdateMode::during_backward, UpdateMode::next_forward};
  for (uint64_t step = 1; step <= std::size(modes); ++step) {
    rig.offloader->set_update_mode(modes[step - 1]);
    rig.step(step, 1);
    reference.step(step);
  }
  expect_same_as_reference(rig, reference);
}

// Without clipping a chunk is updated when its gradient is written, and not when the last one is. When that
// is depends on the disk: the test goes on until it has seen it before the end of a backward pass.
TEST(SpillReadAhead, UpdatesSpilledChunksBesideTheBackwardPass) {
  GradientRequests requests;
  Case c = spilling(UpdateMode::during_backward);
  c.decorate = requests.decorator();
  Rig rig(c);
  Reference reference(rig.specs, 1);
  const std::vector<OptimizerSettings> groups = toy::groups();
  bool seen = false;
  uint64_t step = 0;
  while (!seen && step < 500) {
    const UpdateSettings settings = {groups, ++step, 0, 1};
    const uint64_t before = requests.totals().reads;
    rig.offloader->begin_step();
    rig.offloader->announce_update(settings);
    toy::run_micro_batch(*rig.offloader, rig.specs, 0);
    seen = requests.totals().reads > before;
    rig.offloader->end_micro_batch();
    EXPECT_TRUE(rig.offloader->update(settings).applied);
    reference.step(step);
  }
  EXPECT_TRUE(seen) << "no gradient came back in " << step << " backward passes";
  expect_same_as_reference(rig, reference);
}

// Holds every request until somebody waits, and keeps what the watch says then.
class AskingEngine final : public io::EngineDecorator {
 public:
  AskingEngine(std::unique_ptr<io::Engine> base, const Offloader*& offloader, std::vector<std::string>& said)
      : io::EngineDecorator(std::move(base)), offloader_(offloader), said_(said) {}
  void submit(std::span<const io::Request> requests) override {
    held_.insert(held_.end(), requests.begin(), requests.end());
  }
  size_t poll() override { return 0; }
  size_t wait(size_t min_count) override {
    const bool gradients_only = !held_.empty() && std::ranges::all_of(held_, [](const io::Request& request) {
      return request.kind == io::OpKind::read && GradientRequests::file_of(request).ends_with("/grads.tier");
    });
    if (gradients_only && offloader_ != nullptr) {
      const std::optional<uint64_t> wait = offloader_->report().watch().current();
      said_.push_back(wait ? offloader_->report().watch().describe(*wait).value_or("") : "");
    }
    const std::vector<io::Request> ready = std::move(held_);
    held_.clear();
    base().submit(ready);
    return base().wait(min_count);
  }
  uint64_t in_flight() const override { return held_.size() + base().in_flight(); }

 private:
  const Offloader*& offloader_;  // null until it is made
  std::vector<std::string>& said_;
  std::vector<io::Request> held_;
};

// States are on cpu, so that gradients are all that an update reads.
TEST(SpillReadAhead, AnUpdateThatWaitsForAGradientSaysSo) {
  const ScratchFolder folder;
  std::vector<std::string> said;
  const Offloader* offloader = nullptr;
  uint32_t made = 0;
  CommitCase c{.parameters = Placement::nvme, .states = Placement::cpu, .durable = false};
  c.host_budget = spill_all;
  c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    if (made++ != 0) return engine;
    return std::make_unique<AskingEngine>(std::move(engine), offloader, said);
  };
  CommitRig rig(c, folder.path());
  offloader = rig.offloader.get();
  rig.step(1);
  rig.step(2);
  EXPECT_FALSE(said.empty());
  for (const std::string& text : said) {
    EXPECT_NE(text.find("gradients of chunk"), std::string::npos) << text;
    EXPECT_NE(text.find("grads.tier"), std::string::npos) << text;
  }
  const OffloadCounters counters = rig.offloader->report().counters();
  EXPECT_GT(counters.update_wait_ns, counters.update_write_wait_ns) << "it is no wait for what it writes";
}

}  // namespace
}  // namespace terrace::spill_read_ahead_test
