// Ranks change no number: whatever is divided over however many of them, wherever it lies, every one of them
// has the parameters and the norms, and the first one the records, that one rank has. What goes wrong on one
// of them ends all, and all say where. The full product is in tests/laws/placement_law_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include <terrace/base/error.h>
#include <terrace/comm/operations/dry_communicator.h>
#include <terrace/offload/watch/counter_table.h>

#include "comm/comm_faults.h"
#include "comm/thread_world.h"
#include "offload/toy_rig.h"
#include "support/expect_error.h"
#include "support/offloaders.h"
#include "support/rank_threads.h"
#include "support/sanitized.h"

namespace terrace::ranks_test {
namespace {

using Case = ToyCase<RigKind::placement>;
constexpr uint64_t kSteps = 3;

struct Outcome {
  std::vector<std::byte> parameters;
  std::vector<std::byte> records;
  std::vector<double> norms;
  bool operator==(const Outcome&) const = default;
};

// One rank takes from the device nothing that is handed over.
Outcome train_rank(Case c) {
  const bool is_alone = c.ranks == nullptr || c.ranks->size() == 1;
  if (is_alone && c.gradients == GradientOrigin::handed_over_on_device)
    c.gradients = GradientOrigin::handed_over;
  const ScratchFolder folder;
  ToyRig rig(c, {folder.path()});
  Outcome outcome;
  for (uint64_t step = 1; step <= kSteps; ++step) outcome.norms.push_back(rig.step(step).gradient_norm);
  outcome.records = rig.records();
  outcome.parameters = testing::parameters_of(*rig.offloader, rig.space);
  return outcome;
}

struct Together {
  std::vector<Outcome> outcomes;      // by rank, each with the records of all
  std::vector<std::string> failures;  // by rank; empty: none
};

// `change` makes the case another one on some rank. The ranks' engines are threads: liburing maps
// its rings by system calls that the thread sanitizer does not see, so the ring of one rank where
// another's had been looks like a race.
Together train_together(const Case& c, ThreadWorld& world,
                        const std::function<void(Case&, uint32_t rank)>& change = nullptr) {
  Together together;
  together.outcomes.resize(world.size());
  together.failures = testing::on_every_rank(world, [&](Communicator& rank) {
    Case mine = c;
    mine.ranks = &rank;
    mine.engine = io::EngineKind::threads;
    if (change) change(mine, rank.rank());
    together.outcomes[rank.rank()] = train_rank(mine);
  });
  for (Outcome& outcome : together.outcomes) outcome.records = together.outcomes[0].records;
  return together;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
      Case c{.parameters = parameters, .states = states, .accumulation = 3};
      // Few gradients of bf16 have the same sum in any order.
      if (parameters != Placement::cpu) c.type = DataType::fp32;
      c.chunk_elements = 4 * kTileElements;
      for (const uint32_t way : {0u, 1u, 2u}) {
        c.by_copies = way > 0;
        c.gather_on_devices = way > 1;
        all.push_back(c);
        if (way == 2 && parameters == Placement::cpu) {
          all.push_back(c);
          all.back().gradients = GradientOrigin::handed_over_on_device;
        }
        if (parameters != Placement::none) continue;
        Case divided = c;
        divided.divided = true;
        all.push_back(divided);
        if (way < 2) continue;
        divided.gradients = GradientOrigin::handed_over_on_device;
        all.push_back(divided);
      }
    }
  }
  return testing::thinned(all);
}

std::string text_of(const Case& c) {
  return fmt::format("parameters {}{}, states {}{}", name_of(c.parameters), c.divided ? " in shares" : "",
                     name_of(c.states),
                     c.gradients != GradientOrigin::leases ? ", on devices, handed over"
                     : c.gather_on_devices                 ? ", on devices"
                     : c.by_copies                         ? ", by copies"
                                                           : "");
}

// Five ranks over chunks of four tiles and three micro-batches: some own no tile, and some have no data.
TEST(Ranks, HaveTheNumbersOfOneWhateverIsDividedWherever) {
  for (const Case& c : cases()) {
    const Outcome alone = train_rank(c);
    for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, text_of(c)));
      ThreadWorld world({.ranks = ranks});
      const Together together = train_together(c, world);
      for (uint32_t r = 0; r < ranks; ++r) {
        EXPECT_EQ(together.failures[r], "") << r;
        EXPECT_EQ(together.outcomes[r].norms, alone.norms);
        EXPECT_TRUE(together.outcomes[r] == alone) << r;
      }
    }
  }
}

TEST(Ranks, AreAsLateAsTheyLike) {
  Case c{.parameters = Placement::cpu, .states = Placement::cpu, .type = DataType::fp32, .accumulation = 5};
  c.chunk_elements = 4 * kTileElements;
  std::vector<Case> late_cases;
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    c.mode = mode;
    late_cases.push_back(c);
    late_cases.push_back(c);
    late_cases.back().parameters = Placement::none;
    late_cases.back().divided = true;
  }
  for (const Case& of_mode : late_cases) {
    SCOPED_TRACE(fmt::format("{}, {}", text_of(of_mode), name_of(of_mode.mode)));
    const Outcome alone = train_rank(of_mode);
    for (const uint64_t seed : {1u, 2u}) {
      CommFaults late({}, 300'000, seed);
      ThreadWorld world({.ranks = 3, .hook = &late});
      for (const Outcome& outcome : train_together(of_mode, world).outcomes) EXPECT_TRUE(outcome == alone);
    }
  }
}

// Whatever is fetched ahead, and whatever of the update runs beside the step.
TEST(Ranks, HaveTheSameNumbersWhereEveryTransferIsWaitedFor) {
  for (Case c : cases()) {
    SCOPED_TRACE(text_of(c));
    const Outcome alone = train_rank(c);
    c.overlap = false;
    std::vector<UpdateMode> modes = {UpdateMode::after_backward};
    if (c.states != Placement::none)
      modes.insert(modes.end(), {UpdateMode::next_forward, UpdateMode::during_backward});
    for (const UpdateMode mode : modes) {
      c.mode = mode;
      ThreadWorld world({.ranks = 3});
      const Together together = train_together(c, world);
      for (uint32_t r = 0; r < 3; ++r) {
        EXPECT_EQ(together.failures[r], "") << r;
        EXPECT_TRUE(together.outcomes[r] == alone) << r << " " << name_of(mode);
      }
    }
  }
}

// A rank that looks, when something is asked for, whether what was asked for before is there.
class LookingBack final : public Communicator {
 public:
  explicit LookingBack(Communicator& rank)
      : Communicator(rank.rank(), {rank.places().begin(), rank.places().end()}), rank_(rank) {}

  void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after, Event& done,
                  const CommNote& note) override {
    rank_.all_gather(lane, whole, part_bytes, after, done, note);
  }
  void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                       std::span<CommPart> from, const Event* after, Event& done,
                       const CommNote& note) override {
    for (const Event* const asked : asked_) under_way_ += asked == &done || asked->done() ? 0 : 1;
    rank_.exchange_within(group, lane, to, from, after, done, note);
    // Those of a step are in slots that live as long as the offloader.
    if (note.what == "parameters" || note.what == "gradients") asked_.insert(&done);
  }
  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override {
    rank_.ballot(lane, mine, all);
  }
  void leave(std::string why) override { rank_.leave(std::move(why)); }
  CommCounters counters() const override { return rank_.counters(); }
  uint64_t under_way() const { return under_way_; }

 private:
  Communicator& rank_;
  std::set<const Event*> asked_;
  uint64_t under_way_ = 0;
};

TEST(Ranks, HaveNothingUnderWayWhereEveryTransferIsWaitedFor) {
  for (Case c : cases()) {
    SCOPED_TRACE(text_of(c));
    c.overlap = false;
    c.tight = false;  // there is room to fetch ahead
    CommFaults late({}, 300'000, 1);
    ThreadWorld world({.ranks = 2, .hook = &late});
    const std::vector<std::string> failures = testing::on_every_rank(world, [&](Communicator& rank) {
      LookingBack looking(rank);
      Case mine = c;
      mine.ranks = &looking;
      mine.engine = io::EngineKind::threads;
      train_rank(mine);
      EXPECT_EQ(looking.under_way(), 0u) << rank.rank();
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  }
}

// A bit that changes on its way is found in the step that uses it, on every rank alike.
TEST(Ranks, NameTheChunkThatCameOtherThanItsOwnerHasIt) {
  for (Case c : cases()) {
    SCOPED_TRACE(text_of(c));
    c.compare_ranks_every_steps = 1;
    ThreadWorld well({.ranks = 3});
    const Together sound = train_together(c, well);
    for (const std::string& failure : sound.failures) EXPECT_EQ(failure, "");
    EXPECT_TRUE(sound.outcomes[0] == train_rank(c));
    uint32_t found = 0;
    const uint64_t gathers = well.rank(0).counters()[index_of(Lane::gather)].operations;
    for (uint64_t index = 0; index < gathers; index += 1 + gathers / 6) {
      CommFaults wrong({{CommFaultKind::corrupt, Lane::gather, 1, index}});
      ThreadWorld world({.ranks = 3, .hook = &wrong});
      const Together together = train_together(c, world);
      if (together.failures[0].empty()) continue;  // it was read for a comparison of this test, or not used
      ++found;
      for (const std::string& failure : together.failures) {
        EXPECT_EQ(failure.find("parameters changed on their way between ranks in step "), 0u) << failure;
        EXPECT_NE(failure.find("chunk "), std::string::npos) << failure;
        EXPECT_NE(failure.find("what rank 1 got of the share of rank "), std::string::npos) << failure;
      }
    }
    EXPECT_GT(found, 1u);
  }
}

TEST(Ranks, AreComparedInEverySoManySteps) {
  Case c{.parameters = Placement::cpu, .states = Placement::cpu, .type = DataType::fp32};
  c.chunk_elements = 4 * kTileElements;
  const auto ballots = [&](uint64_t every) {
    c.compare_ranks_every_steps = every;
    ThreadWorld world({.ranks = 2});
    const Together together = train_together(c, world);
    EXPECT_EQ(together.failures[0] + together.failures[1], "");
    return world.rank(0).counters()[index_of(Lane::control)].operations;
  };
  const uint64_t none = ballots(0);
  EXPECT_EQ(ballots(1), none + kSteps);
  EXPECT_EQ(ballots(2), none + kSteps / 2);
  EXPECT_EQ(ballots(kSteps + 1), none);
}

// What a device has of its rank comes to a slot over no link: only fresh parameters cross it, once, as where
// the device has all of them; and more is gathered than once.
TEST(Ranks, HaveSharesOnTheDeviceThatCrossNoLink) {
  for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
    SCOPED_TRACE(name_of(states));
    const auto counted = [&](bool divided) {
      DryCommunicator dry(1, std::vector<RankPlace>(3));
      Case c{.parameters = Placement::none, .states = states, .accumulation = 3};
      c.chunk_elements = 4 * kTileElements;
      c.ranks = &dry;
      c.divided = divided;
      c.dry = true;
      const ScratchFolder folder;
      ToyRig rig(c, {folder.path()});
      for (uint64_t step = 1; step <= kSteps; ++step) rig.step(step);
      return rig.offloader->report().counters();
    };
    const OffloadCounters whole = counted(false), divided = counted(true);
    EXPECT_EQ(divided.h2d_bytes, whole.h2d_bytes);
    EXPECT_EQ(divided.d2h_bytes, whole.d2h_bytes);
    EXPECT_EQ(whole.fetch_count, 0u);
    EXPECT_GT(divided.fetch_count, 0u);
    EXPECT_GT(divided.gather_in_bytes, whole.gather_in_bytes);
  }
}

// Every byte of every rank is known before; what has no choice is moved as often as there are steps.
TEST(Ranks, MoveWhatAPlanCountsAndNoLessThanTheBound) {
  constexpr uint32_t kRanks = 3;
  const auto counted = [](const Case& c, TrafficBound* bound) {
    const ScratchFolder folder;
    ToyRig rig(c, {folder.path()});
    for (uint64_t step = 1; step <= kSteps; ++step) rig.step(step);
    if (bound != nullptr) *bound = rig.offloader->report().traffic_bound();
    return rig.offloader->report().counters();
  };
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    ThreadWorld world({.ranks = kRanks});
    std::vector<OffloadCounters> moved(kRanks);
    std::vector<TrafficBound> bounds(kRanks);
    for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
           Case mine = c;
           mine.ranks = &rank;
           moved[rank.rank()] = counted(mine, &bounds[rank.rank()]);
         }))
      EXPECT_EQ(failure, "");
    for (uint32_t r = 0; r < kRanks; ++r) {
      DryCommunicator dry(r, std::vector<RankPlace>(kRanks));
      Case planned = c;
      planned.ranks = &dry;
      planned.dry = true;
      const OffloadCounters expected = counted(planned, nullptr);
      for (const CounterEntry& link : kLinks) {
        EXPECT_EQ(moved[r].*link.value, expected.*link.value) << r << ": " << link.key;
        if (link.bound != nullptr) {
          EXPECT_GE(moved[r].*link.value, kSteps * (bounds[r].*link.bound)) << r << ": " << link.key;
        }
      }
      EXPECT_EQ(moved[r].exchange_in_bytes, kSteps * bounds[r].exchange_in_bytes);
      EXPECT_EQ(moved[r].exchange_out_bytes, kSteps * bounds[r].exchange_out_bytes);
    }
  }
}

// Else the comparison would say nothing.
TEST(Ranks, HaveOtherNumbersWhereOneBitArrivesWrong) {
  Case c{.parameters = Placement::cpu, .states = Placement::cpu, .type = DataType::fp32, .accumulation = 2};
  c.chunk_elements = 4 * kTileElements;
  const Outcome alone = train_rank(c);
  for (const Lane lane : {Lane::gather, Lane::exchange}) {
    uint32_t others = 0;
    for (const uint64_t index : {2u, 5u, 8u}) {
      CommFaults wrong({{CommFaultKind::corrupt, lane, 1, index}});
      ThreadWorld world({.ranks = 2, .hook = &wrong});
      const Together together = train_together(c, world);
      EXPECT_EQ(together.failures[0] + together.failures[1], "");
      others += together.outcomes[0] == alone ? 0 : 1;
    }
    EXPECT_GT(others, 0u) << name_of(lane);
  }
}

// Or nobody needed what it would have brought: a fetch ahead of a step that does not come.
TEST(Ranks, EndTogetherWhateverOperationFails) {
  uint64_t failed = 0, unneeded = 0;
  for (const Case& c : cases()) {
    ThreadWorld well({.ranks = 2});
    const Together expected = train_together(c, well);
    const CommCounters counters = well.rank(0).counters();
    for (const Lane lane : {Lane::gather, Lane::exchange, Lane::control}) {
      const uint64_t count = counters[index_of(lane)].operations;
      for (uint64_t index = 0; index < count; index += 1 + count / (testing::kSanitized ? 3 : 12)) {
        SCOPED_TRACE(fmt::format("operation {} of lane {}, {}", index, name_of(lane), text_of(c)));
        CommFaults faults({{CommFaultKind::fail, lane, 1, index}});
        ThreadWorld world({.ranks = 2, .hook = &faults});
        const Together together = train_together(c, world);
        if (together.failures[0].empty() && together.failures[1].empty()) {
          EXPECT_TRUE(together.outcomes == expected.outcomes);
          ++unneeded;
          continue;
        }
        ++failed;
        for (const std::string& failure : together.failures)
          EXPECT_NE(failure.find("an injected fault"), std::string::npos) << failure;
      }
    }
  }
  EXPECT_GT(failed, 8 * unneeded);
}

// The words of the rank that failed are in what the others fail with.
TEST(Ranks, EndTogetherWhereOneOfThemFails) {
  const Case c{.parameters = Placement::nvme,
               .states = Placement::nvme,
               .accumulation = 2,
               .chunk_elements = 4 * kTileElements};
  ThreadWorld world({.ranks = 3});
  const Together together = train_together(c, world, [](Case& mine, uint32_t rank) {
    if (rank != 2) return;
    mine.decorate = [](std::unique_ptr<io::Engine>) -> std::unique_ptr<io::Engine> {
      throw Error(ErrorKind::io, {"cannot open", "a folder of rank 2", "EIO", "look at it"});
    };
  });
  EXPECT_EQ(together.failures[2].find("cannot open"), 0u) << together.failures[2];
  for (const uint32_t r : {0u, 1u}) {
    EXPECT_NE(together.failures[r].find("rank 2"), std::string::npos) << together.failures[r];
    EXPECT_NE(together.failures[r].find("a folder of rank 2"), std::string::npos) << together.failures[r];
  }
}

TEST(Ranks, AreRefusedWhereOthersCouldNotReachTheParameters) {
  ThreadWorld world({.ranks = 2});
  for (const std::string& failure : testing::on_every_rank(world, [](Communicator& rank) {
         Case c{.gradients = GradientOrigin::handed_over, .callers = true};
         c.ranks = &rank;
         train_rank(c);
       }))
    EXPECT_NE(failure.find("its parameters lie in memory of the program"), std::string::npos) << failure;
}

TEST(Ranks, AreRefusedOnSeveralHostsWhereParametersGoFromDeviceToDevice) {
  ThreadWorld world({.ranks = 2, .hosts = 2});
  for (const std::string& failure : testing::on_every_rank(world, [](Communicator& rank) {
         Case c{.by_copies = true, .gather_on_devices = true};
         c.ranks = &rank;
         train_rank(c);
       }))
    EXPECT_NE(failure.find("there are 2 hosts, and what crosses between them passes through host memory"),
              std::string::npos)
        << failure;
}

TEST(Ranks, AreRefusedWithoutTheirCommunicator) {
  Case c;
  ToyRig rig(c, {});
  OffloadOptions options = rig.options;
  options.ranks = 2;
  const auto make = [&] {
    const Offloader offloader(rig.space, options, {}, *rig.device, rig.workers, rig.log);
  };
  testing::expect_error(ErrorKind::config, {"rank 0 of 2", "there is no communicator"}, make);
  ThreadWorld world({.ranks = 3});
  options.hooks.communicator = &world.rank(1);
  testing::expect_error(ErrorKind::config, {"rank 0 of 2", "the communicator is rank 1 of 3"}, make);
}

}  // namespace
}  // namespace terrace::ranks_test
