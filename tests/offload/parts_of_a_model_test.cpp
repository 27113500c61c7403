// Runs that each train a part of one model have the numbers of a run that has it whole: the norm is that of
// the model, without copies that another part counts, and all parts clip, update and skip together. What goes
// wrong in one part ends the others, too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/simulated_device.h>

#include "comm/thread_world.h"
#include "offload/toy_training.h"
#include "support/offloaders.h"
#include "support/rank_threads.h"

namespace terrace::parts_test {
namespace {

constexpr uint64_t kSteps = 3;
constexpr uint32_t kMicroBatches = 4;  // of a step, of all ranks of a part together

// Tensors by their names in the whole model; `copies` are of those, and counted elsewhere. No tile of the
// whole has elements of two parts.
struct Part {
  std::vector<std::string> tensors;
  std::vector<std::string> copies = {};
};
const std::map<std::string, uint64_t> kElements{
    {"a", 2 * kTileElements}, {"b", kTileElements}, {"c", 3 * kTileElements}, {"d", 64}};
const Part kWhole{{"a", "b", "c", "d"}};
const std::vector<std::vector<Part>> kDivisions{{{{"a", "b"}}, {{"c", "d"}}},
                                                {{{"a"}}, {{"b", "d"}}, {{"c"}}},
                                                {{{"a", "b"}}, {{"c", "d"}, {"b"}}},
                                                {{{"b"}, {"a"}}, {{"a"}, {"b"}}, {{"c", "d"}, {"a", "b"}}}};

struct Case {
  Placement states = Placement::cpu;
  UpdateMode mode = UpdateMode::after_backward;
  double clip_norm = 0.75;
  uint64_t infinite_step = 0;  // in which a gradient of "c" is infinite; 0: none
  bool rewrites = false;       // gradients, before the update
  DataType type = DataType::fp32;
};

struct Outcome {
  std::map<std::string, std::vector<std::byte>> parameters;
  std::vector<double> norms;
  std::vector<bool> applied;
};

std::vector<TensorSpec> specs_of(const Part& part, DataType type) {
  std::vector<TensorSpec> specs;
  const auto add = [&](const std::string& name, bool is_copy) {
    specs.push_back({.name = name,
                     .shape = {kElements.at(name)},
                     .type = type,
                     .group = name == "b" ? 1u : 0u,
                     .counted_elsewhere = is_copy});
  };
  for (const std::string& name : part.tensors) add(name, false);
  for (const std::string& name : part.copies) add(name, true);
  return specs;
}

// Where each training of a part is among the ranks of its part, and of all parts; null: it is alone.
struct Place {
  Communicator* ranks = nullptr;
  Communicator* model_ranks = nullptr;
};

struct Settings {
  double clip_norm;
  std::vector<OptimizerSettings> groups;
};
using Change = std::function<void(Settings&)>;

class Training {
 public:
  Training(const Part& part, const Case& c, Place place)
      : c_(c), specs_(specs_of(part, c.type)), space_(specs_, kTileElements), workers_(2) {
    options_.parameters = Placement::cpu;
    options_.states = c.states;
    options_.state_paths = {{folder_.path()}};
    options_.gradients = GradientOrigin::handed_over;
    options_.micro_batches = kMicroBatches;
    options_.io.kind = io::EngineKind::threads;
    options_.holds_gradients = c.rewrites;
    testing::set_ranks(options_, place.ranks);
    testing::take_least_budgets(options_, space_, {});
    options_.hooks.model_ranks = place.model_ranks;
    device_ = std::make_unique<SimulatedDevice>(
        SimulatedDeviceOptions{.budget_bytes = options_.device_budget_bytes});
    offloader_ =
        std::make_unique<Offloader>(space_, options_, std::span<const TensorUse>{}, *device_, workers_, log_);
    offloader_->set_update_mode(c.mode);
    offloader_->state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
      const char name = specs_[index_of(tensor)].name.front();
      for (uint64_t e = 0; e < values.size(); ++e) values[e] = toy::initial_value(name, first + e);
    });
  }

  // `change` makes the settings of the last step others.
  Outcome run(const Change& change = nullptr) {
    Outcome outcome;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      Settings settings{c_.clip_norm, toy::groups()};
      if (change && step == kSteps) change(settings);
      const UpdateResult result = this->step(step, settings);
      outcome.norms.push_back(result.gradient_norm);
      outcome.applied.push_back(result.applied);
    }
    offloader_->finish_update();
    for (uint32_t t = 0; t < specs_.size(); ++t)
      outcome.parameters[specs_[t].name] = testing::parameter_of(*offloader_, space_, TensorId{t});
    return outcome;
  }

 private:
  UpdateResult step(uint64_t number, const Settings& settings) {
    const StepRounds rounds = rounds_of(options_);
    offloader_->begin_step();
    for (uint32_t round = 0; round < rounds.count(); ++round) {
      for (uint32_t t = 0; t < specs_.size(); ++t) hand_over(t, number, rounds.number(round, options_.rank));
      offloader_->end_micro_batch();
    }
    if (c_.rewrites) rewrite_gradients();
    return offloader_->update({settings.groups, number, settings.clip_norm});
  }

  // What was handed over is twice the gradient. In two runs, of which each begins or ends within a tile.
  void rewrite_gradients() {
    for (uint32_t t = 0; t < specs_.size(); ++t) {
      const uint64_t elements = kElements.at(specs_[t].name), middle = elements / 3;
      for (const auto& [first, count] :
           {std::pair{uint64_t{0}, middle}, std::pair{middle, elements - middle}}) {
        std::vector<float> values(count);
        offloader_->state().read_values(TensorId{t}, ValueKind::gradient, first, values);
        for (float& value : values) value *= 0.5f;
        offloader_->state().write_values(TensorId{t}, ValueKind::gradient, first, values);
      }
    }
  }

  void hand_over(uint32_t tensor, uint64_t step, uint32_t micro_batch) {
    const std::string& name = specs_[tensor].name;
    std::vector<float> gradient(kElements.at(name));
    for (uint64_t e = 0; e < gradient.size(); ++e)
      gradient[e] = toy::initial_value(name.front() + 7 * micro_batch, e + step) * (c_.rewrites ? 2 : 1);
    if (name == "c" && step == c_.infinite_step && micro_batch == 1)
      gradient[17] = std::numeric_limits<float>::infinity();
    std::vector<std::byte> given(gradient.size() * bytes_of(c_.type));
    for (uint64_t e = 0; e < gradient.size(); ++e) toy::store(given.data(), e, c_.type, gradient[e]);
    offloader_->hand_over_gradient(TensorId{tensor}, given);
  }

  const Case c_;
  const ScratchFolder folder_;
  const std::vector<TensorSpec> specs_;
  const FlatSpace space_;
  MemoryLog log_;
  Workers workers_;
  OffloadOptions options_;
  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<Offloader> offloader_;
};

struct Together {
  std::vector<Outcome> outcomes;      // by rank: those of a part follow each other
  std::vector<std::string> failures;  // empty: none
};

Together train(const std::vector<Part>& parts, uint32_t ranks_of_a_part, const Case& c,
               const std::function<void(uint32_t rank, Settings&)>& change = nullptr) {
  ThreadWorld model({.ranks = static_cast<uint32_t>(parts.size()) * ranks_of_a_part});
  std::vector<std::unique_ptr<ThreadWorld>> worlds;
  for (size_t p = 0; p < parts.size(); ++p)
    worlds.push_back(std::make_unique<ThreadWorld>(ThreadWorldOptions{.ranks = ranks_of_a_part}));
  Together together;
  together.outcomes.resize(model.size());
  together.failures = testing::on_every_rank(model, [&](Communicator& rank) {
    const uint32_t part = rank.rank() / ranks_of_a_part, place = rank.rank() % ranks_of_a_part;
    Communicator* const ranks = ranks_of_a_part > 1 ? &worlds[part]->rank(place) : nullptr;
    const auto of_rank = [&](Settings& settings) {
      if (change) change(rank.rank(), settings);
    };
    try {
      together.outcomes[rank.rank()] = Training(parts[part], c, {ranks, &rank}).run(of_rank);
    } catch (const std::exception& failure) {
      worlds[part]->lose(place, failure.what());
      throw;
    }
  });
  return together;
}

std::vector<Case> cases() {
  return {{},
          {.states = Placement::nvme},
          {.mode = UpdateMode::next_forward, .clip_norm = 0},
          {.infinite_step = 2},
          {.rewrites = true},
          {.states = Placement::nvme, .rewrites = true, .type = DataType::bf16},
          {.states = Placement::nvme, .mode = UpdateMode::next_forward, .infinite_step = 3}};
}

TEST(PartsOfAModel, HaveTheNumbersOfTheWhole) {
  for (const Case& c : cases()) {
    Case plain = c;
    plain.rewrites = false;  // which comes to the same gradients
    const Outcome whole = Training(kWhole, plain, {}).run();
    for (size_t division = 0; division < kDivisions.size(); ++division) {
      for (const uint32_t ranks : {1u, 2u, 3u}) {
        SCOPED_TRACE(fmt::format("division {}, {} ranks of each part, states {}, {}", division, ranks,
                                 name_of(c.states), name_of(c.mode)));
        const Together together = train(kDivisions[division], ranks, c);
        for (size_t rank = 0; rank < together.outcomes.size(); ++rank) {
          const Outcome& outcome = together.outcomes[rank];
          EXPECT_EQ(together.failures[rank], "") << rank;
          EXPECT_EQ(outcome.norms, whole.norms) << rank;
          EXPECT_EQ(outcome.applied, whole.applied) << rank;
          for (const auto& [name, values] : outcome.parameters)
            EXPECT_EQ(values, whole.parameters.at(name)) << rank << " " << name;
        }
      }
    }
  }
}

TEST(PartsOfAModel, DoNotUpdateWhereOneOfThemWouldUpdateOtherwise) {
  for (const uint32_t other : {1u, 2u}) {  // in the first part, and in the second
    const Together clipped = train(kDivisions[0], 2, {}, [&](uint32_t rank, Settings& settings) {
      if (rank == other) settings.clip_norm = 0.5;
    });
    for (const std::string& failure : clipped.failures)
      EXPECT_NE(failure.find("clip_norm 0."), std::string::npos) << failure;
    // Groups are compared within a part alone.
    const Together slowed = train(kDivisions[0], 2, {}, [&](uint32_t rank, Settings& settings) {
      if (rank == other) settings.groups.back().lr /= 2;
    });
    for (const std::string& failure : slowed.failures)
      EXPECT_NE(failure.find("cannot update"), std::string::npos) << failure;
  }
}

TEST(PartsOfAModel, EndWithThePartThatFails) {
  const Together together = train(kDivisions[0], 2, {}, [](uint32_t rank, Settings&) {
    if (rank == 3) throw Error(ErrorKind::io, {"cannot go on", "a part", "its drive is full", "make room"});
  });
  EXPECT_NE(together.failures[3].find("its drive is full"), std::string::npos);
  for (const uint32_t rank : {0u, 1u})
    EXPECT_NE(together.failures[rank].find("rank 3"), std::string::npos) << together.failures[rank];
}

}  // namespace
}  // namespace terrace::parts_test
