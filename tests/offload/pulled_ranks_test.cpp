// Ranks that pull have the numbers of one rank: where they do the same, and where each uses other tensors in
// another order, leaves others out, hands gradients over in another order and evaluates for another time.
// Nothing waits for good, and what cannot be pulled is refused at its option.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <terrace/base/error.h>

#include "comm/rank_worlds.h"
#include "offload/toy_rig.h"
#include "support/expect_error.h"
#include "support/offloaders.h"
#include "support/rank_threads.h"

namespace terrace::pulled_ranks_test {
namespace {

using Case = ToyCase<RigKind::placement>;
constexpr uint64_t kSteps = 3;

struct Outcome {
  std::vector<std::byte> parameters;
  std::vector<std::byte> records;
  std::vector<double> norms;
  bool operator==(const Outcome&) const = default;
};

// A step as a rank makes it.
using Step = std::function<UpdateResult(ToyRig& rig, uint64_t step)>;

Outcome train_rank(const Case& c, const Step& step) {
  const ScratchFolder folder;
  ToyRig rig(c, {folder.path()});
  Outcome outcome;
  for (uint64_t s = 1; s <= kSteps; ++s) outcome.norms.push_back(step(rig, s).gradient_norm);
  rig.offloader->finish_update();
  outcome.records = rig.records();
  outcome.parameters = testing::parameters_of(*rig.offloader, rig.space);
  return outcome;
}

// Empty where all ranks have the numbers of `alone`; else what differs.
std::string difference(const Case& c, testing::RankWorld& world, const Outcome& alone, const Step& step) {
  std::vector<Outcome> outcomes(world.size());
  const std::vector<std::string> failures = testing::on_every_rank(world, [&](Communicator& rank) {
    Case mine = c;
    mine.ranks = &rank;
    mine.exchange = RankExchange::pulled;
    mine.engine = io::EngineKind::threads;
    outcomes[rank.rank()] = train_rank(mine, step);
  });
  for (uint32_t r = 0; r < world.size(); ++r) {
    if (!failures[r].empty()) return fmt::format("rank {}: {}", r, failures[r]);
    outcomes[r].records = outcomes[0].records;
    if (outcomes[r].norms != alone.norms) return fmt::format("the norms of rank {}", r);
    if (outcomes[r].records != alone.records) return "the records";
    if (outcomes[r].parameters != alone.parameters) return fmt::format("the parameters of rank {}", r);
  }
  return "";
}

std::unique_ptr<testing::RankWorld> world_of(std::string_view kind, uint32_t ranks, uint32_t hosts = 1) {
  const std::vector<testing::RankWorldKind> kinds = testing::rank_world_kinds();
  return std::ranges::find(kinds, kind, &testing::RankWorldKind::name)
      ->make({.ranks = ranks, .hosts = hosts});
}

std::string text_of(const Case& c) {
  return fmt::format("parameters {}, states {}, {}{}{}", name_of(c.parameters), name_of(c.states),
                     name_of(c.mode), c.by_copies ? ", by copies" : "", c.spills ? ", spilled" : "");
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Placement parameters : {Placement::cpu, Placement::nvme, Placement::none, Placement::none}) {
    for (const Placement states : {Placement::cpu, Placement::nvme, Placement::none}) {
      const bool is_divided = all.size() > 10;  // those of the second round on the device
      if (states == Placement::none && (parameters != Placement::none || is_divided)) continue;  // refused
      Case c{.parameters = parameters, .states = states, .accumulation = 3};
      if (parameters != Placement::cpu) c.type = DataType::fp32;  // whose sums depend on their order
      c.chunk_elements = 4 * kTileElements;
      c.divided = is_divided;
      c.by_copies = states == Placement::nvme && !c.divided;
      all.push_back(c);
      if (parameters == Placement::none || states == Placement::none) continue;
      c.mode = UpdateMode::next_forward;
      c.spills = parameters == Placement::nvme && states == Placement::nvme;
      all.push_back(c);
    }
  }
  return all;
}

TEST(PulledRanks, HaveTheNumbersOfOneWhereAllDoTheSame) {
  const Step step = [](ToyRig& rig, uint64_t number) { return rig.step(number); };
  for (const Case& c : cases()) {
    const Outcome alone = train_rank(c, step);
    for (const uint32_t ranks : {2u, 3u, 5u}) {
      const auto world = world_of("Threads", ranks);
      EXPECT_EQ(difference(c, *world, alone, step), "") << ranks << " ranks, " << text_of(c);
    }
  }
}

// --- Ranks that differ ---

// What is done in a step depends on its number and on that of the micro-batch, and in which order on the rank
// too.
std::minstd_rand random_of(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  std::seed_seq words{seed, a, b, c};
  return std::minstd_rand(words);
}

class Diverging {
 public:
  explicit Diverging(uint64_t seed) : seed_(seed) {}

  UpdateResult operator()(ToyRig& rig, uint64_t step) {
    const uint32_t rank = rig.options.rank;
    std::minstd_rand own = random_of(seed_, step, rank, 7);
    for (uint64_t i = own() % 4; i > 0; --i) evaluate(rig, own);
    rig.offloader->begin_step();
    const StepRounds rounds{rig.accumulation, rig.options.ranks};
    for (uint32_t round = 0; round < rounds.count(); ++round) {
      if (rounds.has(round, rank)) micro_batch(rig, step, rounds.number(round, rank), own);
      rig.offloader->end_micro_batch();
    }
    const std::vector<OptimizerSettings> groups = toy::groups();
    return rig.offloader->update({groups, step});
  }

 private:
  void evaluate(ToyRig& rig, std::minstd_rand& own) {
    rig.offloader->begin_evaluation();
    for (uint64_t use = own() % 3; use > 0; --use) {
      const std::vector<TensorId> tensors = {TensorId{static_cast<uint32_t>(own() % rig.specs.size())}};
      const Lease lease(*rig.offloader, fmt::format("evaluate {}", use), tensors, UseKind::inference);
    }
    rig.offloader->end_evaluation();
  }

  // The tensors that the micro-batch uses, in an order of this rank.
  std::vector<TensorId> used(const ToyRig& rig, uint64_t step, uint32_t micro_batch, std::minstd_rand& own) {
    std::minstd_rand random = random_of(seed_, step, micro_batch);
    const uint64_t one_of = 2 + random() % 3;  // so many of them are left out
    std::vector<TensorId> tensors;
    for (uint32_t t = 0; t < rig.specs.size(); ++t) {
      if (rig.specs[t].trainable && random() % one_of != 0) tensors.push_back(TensorId{t});
    }
    std::ranges::shuffle(tensors, own);
    return tensors;
  }

  void micro_batch(ToyRig& rig, uint64_t step, uint32_t number, std::minstd_rand& own) {
    std::vector<TensorId> tensors = used(rig, step, number, own);
    for (const TensorId tensor : tensors)
      const Lease lease(*rig.offloader, fmt::format("forward {}", index_of(tensor)), {&tensor, 1},
                        UseKind::forward);
    std::ranges::shuffle(tensors, own);
    for (const TensorId tensor : tensors) {
      const TensorSpec& spec = rig.specs[index_of(tensor)];
      std::vector<std::byte> gradient(spec.element_count() * bytes_of(spec.type));
      {
        const Lease lease(*rig.offloader, fmt::format("backward {}", index_of(tensor)), {&tensor, 1},
                          UseKind::backward);
        const std::byte* const parameter = rig.offloader->parameter(tensor);
        for (uint64_t e = 0; e < spec.element_count(); ++e) {
          const auto at = static_cast<float>((e * 31 + number * 17 + step * 7) % 97);
          toy::store(gradient.data(), e, spec.type,
                     toy::load(parameter, e, spec.type) * 0.37f + (at - 48) * 0.0113f);
        }
      }
      rig.offloader->hand_over_gradient(tensor, gradient);
    }
  }

  const uint64_t seed_;
};

Case diverging_case(uint64_t seed) {
  std::vector<Case> all = cases();
  Case c = all[seed % all.size()];
  c.gradients = GradientOrigin::handed_over;
  c.announced = false;
  c.tight = seed % 3 != 0;
  c.unused = seed % 2 == 0 ? UnusedGradients::zero : UnusedGradients::skip;
  c.accumulation = 1 + static_cast<uint32_t>(seed % 5);
  c.gradient_group = 1 + static_cast<uint32_t>(seed / 2 % 2);
  c.chunk_elements = (1 + seed % 3 * 2) * kTileElements;
  c.with_frozen = seed % 4 == 1;
  return c;
}

constexpr uint64_t kSeeds = 24;

TEST(PulledRanks, HaveTheNumbersOfOneWhereEachDoesSomethingElse) {
  constexpr std::string_view kKinds[] = {"Threads", "LateMessages", "LatePeers", "Sockets"};
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Case c = diverging_case(seed);
    const Outcome alone = train_rank(c, Diverging(seed));
    const uint32_t ranks = 2 + static_cast<uint32_t>(seed % 4);
    const auto world = world_of(kKinds[seed % std::size(kKinds)], ranks, ranks == 4 ? 2 : 1);
    EXPECT_EQ(difference(c, *world, alone, Diverging(seed)), "")
        << "seed " << seed << ", " << ranks << " ranks, " << text_of(c);
  }
}

// Else the law would say nothing: other seeds have other numbers.
TEST(PulledRanks, DivergeWithTheirSeed) {
  const Case c = diverging_case(2);
  EXPECT_FALSE(train_rank(c, Diverging(2)) == train_rank(c, Diverging(8)));
}

// One rank has the same numbers wherever its gradients rest, in groups too, whose sums have padding.
TEST(PulledRanks, AreHeldAgainstNumbersThatNoPlaceOfGradientsChanges) {
  for (const uint64_t seed : {7u, 19u, 22u}) {
    Case spilled = diverging_case(seed);
    spilled.parameters = Placement::cpu;
    spilled.states = Placement::nvme;
    spilled.spills = true;
    Case held = spilled;
    held.spills = held.tight = false;
    held.states = Placement::cpu;
    EXPECT_TRUE(train_rank(spilled, Diverging(seed)) == train_rank(held, Diverging(seed))) << seed;
  }
}

// The others have come to their end, and answer.
TEST(PulledRanks, EvaluateWhileTheOthersHaveEnded) {
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    const auto world = world_of("LatePeers", 3);
    const std::vector<std::string> failures = testing::on_every_rank(*world, [&](Communicator& rank) {
      Case c{.parameters = parameters, .states = Placement::nvme, .exchange = RankExchange::pulled};
      c.ranks = &rank;
      c.engine = io::EngineKind::threads;
      const ScratchFolder folder;
      ToyRig rig(c, {folder.path()});
      rig.step(1);
      if (rank.rank() != 1) return;
      for (uint32_t turn = 0; turn < 3; ++turn) {
        rig.offloader->begin_evaluation();
        for (uint32_t t = 0; t < rig.specs.size(); ++t) {
          const TensorId tensor{t};
          const Lease lease(*rig.offloader, fmt::format("evaluate {}", t), {&tensor, 1}, UseKind::inference);
        }
        rig.offloader->end_evaluation();
      }
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  }
}

// After the last update chunks of a step are fetched that never comes.
TEST(PulledRanks, EndWithFetchesAheadUnderWay) {
  for (uint32_t turn = 0; turn < 6; ++turn) {
    const auto world = world_of("Threads", 2);
    const std::vector<std::string> failures = testing::on_every_rank(*world, [&](Communicator& rank) {
      Case c{.accumulation = 2,
             .chunk_elements = 16 * kTileElements,
             .tight = false,
             .exchange = RankExchange::pulled};
      c.ranks = &rank;
      const ScratchFolder folder;
      ToyRig rig(c, {folder.path()});
      for (uint64_t step = 1; step <= 3; ++step) rig.step(step);
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  }
}

TEST(PulledRanks, EndTogetherWhereOneMakesFewerSteps) {
  const auto world = world_of("Threads", 3);
  const std::vector<std::string> failures = testing::on_every_rank(*world, [&](Communicator& rank) {
    Case c{.exchange = RankExchange::pulled};
    c.ranks = &rank;
    const ScratchFolder folder;
    ToyRig rig(c, {folder.path()});
    for (uint64_t step = 1; step <= (rank.rank() == 2 ? 1u : 2u); ++step) rig.step(step);
  });
  EXPECT_EQ(failures[2], "");
  for (const uint32_t r : {0u, 1u}) EXPECT_NE(failures[r].find("rank 2"), std::string::npos) << failures[r];
}

TEST(PulledRanks, AreRefusedWhatTheyCannotDo) {
  const auto refused = [](const char* why, const std::function<void(Case&)>& change) {
    const auto world = world_of("Threads", 2);
    for (const std::string& failure : testing::on_every_rank(*world, [&](Communicator& rank) {
           Case c{.accumulation = 4, .exchange = RankExchange::pulled};
           c.ranks = &rank;
           change(c);
           const ScratchFolder folder;
           const ToyRig rig(c, {folder.path()});
         }))
      EXPECT_NE(failure.find(why), std::string::npos) << failure;
  };
  refused("micro-batches that are open together", [](Case& c) { c.layer_major = true; });
  refused("optimizer states on the device", [](Case& c) { c.states = Placement::none, c.by_copies = true; });
  refused("parameters that are divided", [](Case& c) { c.states = Placement::none; });
  refused("shares of parameters on the device",
          [](Case& c) { c.parameters = Placement::none, c.divided = c.by_copies = true; });
  refused("parameters that go from device to device",
          [](Case& c) { c.by_copies = c.gather_on_devices = true; });
  refused("compare what has come", [](Case& c) { c.compare_ranks_every_steps = 1; });
}

TEST(PulledRanks, SayWhichModesOfTheUpdateTheyCannotHave) {
  const auto world = world_of("Threads", 2);
  for (const Placement parameters : {Placement::cpu, Placement::none}) {
    for (const std::string& failure : testing::on_every_rank(*world, [&](Communicator& rank) {
           Case c{.parameters = parameters, .exchange = RankExchange::pulled};
           c.ranks = &rank;
           const ScratchFolder folder;
           const ToyRig rig(c, {folder.path()});
           const Offloader& offloader = *rig.offloader;
           EXPECT_NE(offloader.why_not(UpdateMode::during_backward).find("before the end of a step"),
                     std::string::npos);
           EXPECT_EQ(offloader.why_not(UpdateMode::next_forward).empty(), parameters == Placement::cpu);
         }))
      EXPECT_EQ(failure, "");
  }
}

}  // namespace
}  // namespace terrace::pulled_ranks_test
