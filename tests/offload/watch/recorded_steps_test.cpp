// What an Offloader records of its steps.
#include "offload/watch/recorded_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "comm/thread_world.h"
#include "offload/commits/commit_rig.h"
#include "offload/offloader_rig.h"
#include "support/rank_threads.h"
#include "support/sanitized.h"

namespace terrace::recorded_steps_test {
namespace {

constexpr uint64_t kSteps = 4;

void train(Rig& rig, RecordedSteps& recorded, uint32_t accumulation) {
  for (uint64_t step = 1; step <= kSteps; ++step) {
    recorded.begin(step, *rig.offloader);
    rig.step(step, accumulation);
    recorded.end(*rig.offloader);
  }
  rig.offloader->finish_update();
  rig.offloader->begin_evaluation();  // what was asked for has ended
  rig.offloader->end_evaluation();
}

TEST(RecordedSteps, HaveTheTransfersThatTheirCountersCountInEveryPlacementAndMode) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const UpdateMode mode :
           {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
        if (states == Placement::none && mode != UpdateMode::after_backward) continue;
        for (const uint32_t accumulation : {1u, 3u}) {
          if (testing::kSanitized && accumulation == 1) continue;
          RecordedSteps recorded(2);
          {
            Rig rig({.parameters = parameters,
                     .states = states,
                     .accumulation = accumulation,
                     .strict = false,
                     .engine = io::EngineKind::threads,
                     .mode = mode,
                     .step_events = &recorded.events});
            train(rig, recorded, accumulation);
            recorded.forget_before(2);
          }
          recorded.take();
          EXPECT_EQ(recorded.difference(), "")
              << name_of(parameters) << " " << name_of(states) << " " << name_of(mode) << " " << accumulation;
          EXPECT_EQ(recorded.of(TraceKind::step).size(), kSteps - 1);
        }
      }
    }
  }
}

// Three ranks with four micro-batches: one round is without data on two of them.
TEST(RecordedSteps, HaveWhatComesFromOtherRanks) {
  for (const bool divided : {false, true}) {
    for (const uint32_t way : {0u, 1u, 2u}) {
      SCOPED_TRACE(fmt::format("stage {}, way {}", divided ? 3 : 2, way));
      ThreadWorld world({.ranks = 3});
      for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
             RecordedSteps recorded(1);
             ToyCase<RigKind::placement> c{.parameters = Placement::none, .accumulation = 4};
             c.chunk_elements = 4 * kTileElements;  // so that each rank owns some
             c.divided = divided;
             c.by_copies = way > 0;
             c.gather_on_devices = way > 1;
             c.ranks = &rank;
             c.engine = io::EngineKind::threads;
             c.step_events = &recorded.events;
             {
               const ScratchFolder folder;
               ToyRig rig(c, {folder.path()});
               for (uint64_t step = 1; step <= kSteps; ++step) {
                 recorded.begin(step, *rig.offloader);
                 rig.step(step);
                 recorded.end(*rig.offloader);
               }
             }
             recorded.take();
             EXPECT_EQ(recorded.difference(), "") << rank.rank();
             EXPECT_GT(recorded.bytes(TraceLink::exchange), 0u);
             EXPECT_GT(recorded.bytes(TraceLink::gather), 0u);
           }))
        EXPECT_EQ(failure, "");
    }
  }
}

TEST(RecordedSteps, HaveTheTransfersOfSpilledGradientsToo) {
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const uint32_t accumulation : {1u, 3u}) {
      RecordedSteps recorded;
      uint64_t written = 0;
      {
        Rig rig({.parameters = Placement::nvme,
                 .states = Placement::nvme,
                 .accumulation = accumulation,
                 .strict = false,
                 .engine = io::EngineKind::threads,
                 .mode = mode,
                 .spills = true,
                 .step_events = &recorded.events});
        train(rig, recorded, accumulation);
        written = rig.offloader->report().counters().gradient_write_bytes;
      }
      recorded.take();
      EXPECT_GT(written, 0u);
      EXPECT_EQ(recorded.difference(), "") << name_of(mode) << " " << accumulation;
    }
  }
}

// A rig of which the last step is looked at; what was asked for in the one before is recorded too.
class OneRecordedStep : public ::testing::Test {
 protected:
  OneRecordedStep() : recorded_(kSteps - 1) {
    rig_ = std::make_unique<Rig>(Case{.parameters = Placement::nvme,
                                      .states = Placement::nvme,
                                      .tight = false,
                                      .strict = false,
                                      .engine = io::EngineKind::threads,
                                      .spills = true,
                                      .step_events = &recorded_.events});
    train(*rig_, recorded_, 1);
    rig_->offloader.reset();
    recorded_.take();
    span_ = span_of_step(recorded_.taken, kSteps).value();
  }
  const std::vector<TraceEvent>& taken() const { return recorded_.taken; }

  RecordedSteps recorded_;
  std::unique_ptr<Rig> rig_;
  StepSpan span_;
};

TEST_F(OneRecordedStep, NamesItsOperationsInTheirOrder) {
  std::vector<std::string> names;
  for (const TraceEvent& use : recorded_.of(TraceKind::use)) {
    if (use.step != kSteps) continue;
    names.emplace_back(recorded_.events.name(use.name));
    EXPECT_GE(use.begin_ns, span_.begin_ns);
    EXPECT_LE(use.begin_ns, use.end_ns);
    EXPECT_LE(use.end_ns, span_.end_ns);
    EXPECT_EQ(use.use, names.back().ends_with("forward") ? UseKind::forward : UseKind::backward);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"mb0/embed/forward", "mb0/block0/forward", "mb0/block1/forward",
                                             "mb0/block2/forward", "mb0/head/forward", "mb0/head/backward",
                                             "mb0/block2/backward", "mb0/block1/backward",
                                             "mb0/block0/backward", "mb0/embed/backward"}));
}

TEST_F(OneRecordedStep, HasAFetchForEveryChunkThatCameAndTheCopyThatBroughtIt) {
  std::map<uint64_t, TraceEvent> copies;
  for (const TraceEvent& event : recorded_.of(TraceKind::transfer)) {
    EXPECT_LE(event.begin_ns, event.end_ns);
    if (event.link == TraceLink::h2d) copies[event.id] = event;
  }
  size_t ahead = 0;
  for (const TraceEvent& fetch : recorded_.of(TraceKind::fetch)) {
    EXPECT_LE(fetch.begin_ns, fetch.end_ns);
    if (fetch.id == 0 || fetch.step != kSteps) continue;
    ++ahead;
    ASSERT_TRUE(copies.contains(fetch.id));
    const TraceEvent& copy = copies[fetch.id];
    EXPECT_EQ(copy.chunk, fetch.chunk);
    EXPECT_LE(fetch.begin_ns, copy.begin_ns);
    EXPECT_LE(copy.end_ns, fetch.end_ns);
  }
  EXPECT_GT(ahead, 0u);
}

TEST_F(OneRecordedStep, AccountsForEverySlotOfTheDevice) {
  const TraceFacts& facts = recorded_.events.facts();
  const std::vector<DeviceSample> samples = device_occupancy(taken(), span_);
  ASSERT_FALSE(samples.empty());
  for (const DeviceSample& sample : samples)
    EXPECT_LE(sample.param_slots + sample.grad_slots + sample.leaving_slots, facts.device_slot_count);
  EXPECT_LE(facts.device_slot_count * facts.device_slot_bytes + facts.device_other_bytes,
            facts.device_budget_bytes);
  // At any moment as many chunks have slots as there are slots in use.
  const std::vector<Residence> found = residences(taken(), span_);
  for (const DeviceSample& sample : samples) {
    const auto holds = [&](const Residence& r) {
      return r.begin_ns <= sample.at_ns && sample.at_ns < r.end_ns;
    };
    EXPECT_LE(std::ranges::count_if(found, holds), sample.param_slots + sample.grad_slots);
  }
  for (const GaugeSample& ring : gauge_over(taken(), span_, TraceGauge::ring_slots))
    EXPECT_LE(ring.value, facts.ring_slot_count);
  const std::vector<GaugeSample> host = gauge_over(taken(), span_, TraceGauge::host_bytes);
  ASSERT_FALSE(host.empty());
  for (const GaugeSample& sample : host) EXPECT_LE(sample.value, facts.host_budget_bytes);
}

TEST_F(OneRecordedStep, UpdatesEveryRecordOnce) {
  std::map<uint32_t, uint64_t> updated;
  for (const TraceEvent& event : recorded_.of(TraceKind::update))
    updated[event.chunk] += event.step == kSteps ? event.bytes : 0;
  const MemoryPlan plan = plan_memory(rig_->space, {}, rig_->options);
  uint64_t trainable = 0;
  for (uint32_t c = 0; c < rig_->space.chunk_count(); ++c) {
    if (!rig_->space.section_of(ChunkId{c}).trainable) continue;
    ++trainable;
    EXPECT_EQ(updated[c], rig_->space.chunk(ChunkId{c}).tile_count() * plan.record_layout.tile_bytes());
  }
  EXPECT_EQ(updated.size(), trainable);
}

TEST_F(OneRecordedStep, EmptiesEveryQueueAgain) {
  std::map<uint16_t, std::pair<uint64_t, uint64_t>> last;
  for (const TraceEvent& event : recorded_.of(TraceKind::queue)) last[event.lane] = {event.id, event.bytes};
  EXPECT_EQ(last.size(), 2u);  // that of the step thread and that of parameters
  for (const auto& [lane, left] : last) {
    EXPECT_EQ(left.first, 0u) << recorded_.events.engines()[lane];
    EXPECT_EQ(left.second, 0u) << recorded_.events.engines()[lane];
  }
}

TEST(RecordedSteps, SayWhatACommitWrote) {
  const ScratchFolder folder;
  RecordedSteps recorded;
  uint64_t written = 0;
  {
    CommitRig rig({.step_events = &recorded.events}, folder.path());
    for (uint64_t step = 1; step <= 2; ++step) {
      recorded.begin(step, *rig.offloader);
      rig.step(step);
      recorded.end(*rig.offloader);
      rig.offloader->commits().begin("info");
    }
    rig.offloader->commits().finish();
    written = rig.offloader->report().counters().commit_write_bytes;
  }
  recorded.take();
  EXPECT_EQ(recorded.difference(), "");
  const std::vector<TraceEvent> commits = recorded.of(TraceKind::commit);
  ASSERT_EQ(commits.size(), 2u);
  EXPECT_EQ(commits[1].id, commits[0].id + 1);
  EXPECT_FALSE(commits[0].failed);
  uint64_t transferred = 0;
  for (const TraceEvent& event : recorded.of(TraceKind::transfer))
    transferred += event.reason == TransferReason::commit ? event.bytes : 0;
  EXPECT_GT(written, 0u);
  EXPECT_EQ(commits[0].bytes + commits[1].bytes, written);
  EXPECT_EQ(transferred, written);
}

}  // namespace
}  // namespace terrace::recorded_steps_test
