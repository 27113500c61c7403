// Every way out of a run, in every phase that a run can be left in: what is kept is the state of a step, as
// the table in docs/faults.md has it, and leads on to the numbers of a run that nothing happened to.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/base/error.h>
#include <terrace/offload/plan/update_mode.h>

#include "reference/poisoned_model.h"
#include "reference/trainer_rig.h"
#include "support/child_test.h"
#include "support/enum_values.h"
#include "support/sanitized.h"

namespace terrace::run_endings_test {
namespace {

using namespace trainer_tests;

constexpr uint64_t kDurable = 2;  // the step of a commit from before
constexpr uint64_t kLeftAt = 3;   // the step that has ended when the run is left
constexpr uint64_t kSteps = 5;
constexpr int kDied = 9;

// What is under way besides the update, which `next_forward` leaves to the next step.
enum class Phase : uint8_t {
  between_two_steps,
  during_a_commit,
  during_a_checkpoint,
  in_a_step,
  in_an_evaluation
};
enum class Way : uint8_t { error, not_finite, stop, death, destructor, budget, save };
constexpr auto kPhases = testing::enumerator_names<Phase>();
constexpr auto kWays = testing::enumerator_names<Way>();
constexpr auto kModes = testing::enumerator_names<UpdateMode>();

struct Leaving {
  Way way;
  Phase phase;
  UpdateMode mode;
  bool compact;

  std::string text() const {
    return fmt::format("{}_{}_{}{}", kWays[static_cast<size_t>(way)], kPhases[static_cast<size_t>(phase)],
                       name_of(mode), compact ? "_compact" : "");
  }
};

// A run is stopped, and its budget changed, between two steps only.
std::vector<Leaving> all_leavings() {
  std::vector<Leaving> all;
  for (size_t way = 0; way < kWays.size(); ++way) {
    for (size_t phase = 0; phase < kPhases.size(); ++phase) {
      const Leaving leaving{static_cast<Way>(way), static_cast<Phase>(phase), {}, false};
      const bool in_its_midst = leaving.phase == Phase::in_a_step || leaving.phase == Phase::in_an_evaluation;
      if (in_its_midst && leaving.way != Way::error && leaving.way != Way::death) continue;
      for (size_t mode = 0; mode < kModes.size(); ++mode) {
        for (const bool compact : {false, true})
          all.push_back({leaving.way, leaving.phase, static_cast<UpdateMode>(mode), compact});
      }
    }
  }
  return all;
}

// From some moment on every request fails, and from another on none does.
class FailingEngine final : public io::EngineDecorator {
 public:
  FailingEngine(std::unique_ptr<io::Engine> base, const std::atomic<bool>& fails)
      : io::EngineDecorator(std::move(base)), fails_(fails) {}
  void submit(std::span<const io::Request> requests) override {
    std::vector<io::Request> changed(requests.begin(), requests.end());
    for (io::Request& request : changed) {
      if (fails_) request.fd = -1;
    }
    base().submit(changed);
  }

 private:
  const std::atomic<bool>& fails_;
};

RunOptions options_of(const Leaving& leaving, const fs::path& folder) {
  RunOptions options;
  options.nvme = folder / "nvme";
  options.parameters = "nvme";
  options.precision = "true";
  options.clipping = "0";
  options.accumulation = "2";
  options.validation_fraction = 0.2;
  options.update = name_of(leaving.mode);
  options.compact = leaving.compact ? "true" : "false";
  options.host_memory = least_host_memory(options);
  return options;
}

// A run up to the moment when it is left.
class LeftRun {
 public:
  LeftRun(const Leaving& leaving, const fs::path& folder) : leaving_(leaving), saved_(folder / "saved") {
    RunOptions options = options_of(leaving, folder);
    options.decorate = [this](std::unique_ptr<io::Engine> engine) {
      return std::make_unique<FailingEngine>(std::move(engine), fails_);
    };
    Poison poison{.micro_batch = 2 * kLeftAt + 2, .tensor = "wpe"};
    if (leaving.way == Way::death) poison.instead = [] { _exit(kDied); };
    if (leaving.way == Way::error) poison.instead = [this] { fails_ = true; };
    poison.in_evaluation = leaving.phase == Phase::in_an_evaluation;
    is_poisoned_ = leaving.way == Way::not_finite || leaving.phase == Phase::in_a_step ||
                   leaving.phase == Phase::in_an_evaluation;
    if (is_poisoned_) options.model = poisoned(poison);
    run_.emplace(options);
    trainer().step(), trainer().step();
    trainer().begin_commit();
    trainer().finish_commit();
    trainer().step();
    if (leaving.phase == Phase::during_a_commit) trainer().begin_commit();
    if (leaving.phase == Phase::during_a_checkpoint) note(trainer().begin_save(run_->saves_in(saved_)));
  }

  void leave() {
    switch (leaving_.way) {
      case Way::error:
        if (leaving_.phase == Phase::in_an_evaluation) {
          fail([&] { trainer().evaluate(8); });
        } else {
          fails_ = leaving_.phase != Phase::in_a_step;
          fail([&] { trainer().step(), note(trainer().look_after_state()), trainer().step(); });
        }
        fails_ = false;
        return keep_after_failure();
      case Way::not_finite:
        fail([&] { trainer().step(); });
        return keep_after_failure();
      case Way::stop:
        return keep_last_state();
      case Way::death:
        if (leaving_.phase == Phase::in_a_step) trainer().step();
        if (leaving_.phase == Phase::in_an_evaluation) trainer().evaluate(8);
        _exit(is_poisoned_ ? 0 : kDied);  // what is poisoned has died before
      case Way::destructor:
        return;
      case Way::budget:
        trainer().set_host_budget(trainer().offloader().plan().host_minimum_bytes);
        return go_on();
      case Way::save:
        note(trainer().begin_save(run_->saves_in(saved_)));
        note(trainer().begin_commit());
        return go_on();
    }
  }

  std::optional<uint64_t> durable;  // steps, as the trainer has said
  std::optional<uint64_t> checkpoint;
  std::optional<std::vector<std::byte>> final_state;

 private:
  Trainer& trainer() { return *run_->trainer; }
  void note(const KeptState& kept) {
    if (kept.checkpoint) checkpoint = kept.checkpoint->step;
  }
  void fail(const std::function<void()>& action) { EXPECT_THROW(action(), Error); }

  void go_on() {
    while (trainer().completed_steps() < kSteps) trainer().step();
    keep_last_state();
    final_state = run_->state();
  }
  void keep_last_state() {
    trainer().finish_update();
    note(trainer().begin_save(run_->saves_in(saved_)));
    note(trainer().finish_save());
    trainer().begin_commit();
    trainer().finish_commit();
    durable = trainer().durable_step();
  }
  // All that anybody might try, whether the trainer says that it can be done or not.
  void keep_after_failure() {
    const auto in_passing = [](const std::function<void()>& action) {
      try {
        action();
      } catch (const Error&) {
      }
    };
    in_passing([&] { trainer().finish_update(); });
    in_passing([&] { note(trainer().finish_save()); });
    in_passing([&] {
      note({{}, SavedCheckpoint{trainer().completed_steps(), trainer().save(run_->saves_in(saved_))}});
    });
    in_passing([&] { trainer().begin_commit(); });
    in_passing([&] { trainer().finish_commit(); });
    durable = trainer().durable_step();
  }

  const Leaving leaving_;
  const fs::path saved_;
  std::atomic<bool> fails_{false};
  bool is_poisoned_ = false;
  std::optional<TrainerRun> run_;
};

// The table: the least step that is durable on nvme afterwards.
uint64_t least_durable(const Leaving& leaving) {
  switch (leaving.way) {
    case Way::stop:
      return kLeftAt;
    case Way::budget:
    case Way::save:
      return kSteps;
    case Way::not_finite:  // what was applied in part is no state any more
      return leaving.mode == UpdateMode::during_backward && leaving.phase == Phase::between_two_steps
                 ? kDurable
                 : kLeftAt;
    case Way::destructor:
      return leaving.phase == Phase::between_two_steps ? kDurable : kLeftAt;
    case Way::error:
    case Way::death:
      return kDurable;
  }
  return 0;
}

constexpr const char* kChild = "RunEndingsChild.DISABLED_Leaves";

TEST(RunEndingsChild, DISABLED_Leaves) {
  LeftRun run(all_leavings()[testing::child_seed()], testing::child_folder());
  run.leave();
}

class RunEndings : public ::testing::TestWithParam<size_t> {};

TEST_P(RunEndings, KeepTheStateOfAStep) {
  const Leaving leaving = all_leavings()[GetParam()];
  SCOPED_TRACE(leaving.text());
  const ScratchFolder folder;
  fs::create_directory(folder.path() / "nvme");
  RunOptions calm = options_of(leaving, folder.path());
  calm.nvme.clear(), calm.parameters.clear(), calm.compact = "false", calm.update = "after_backward";
  calm.host_memory = "64MiB";
  static const std::vector<std::vector<std::byte>> expected = states_of_calm_run(calm, kSteps);

  std::optional<uint64_t> durable, checkpoint;
  if (leaving.way == Way::death) {
    const int status = testing::run_test_in_child(kChild, static_cast<uint32_t>(GetParam()), folder.path());
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), kDied);
  } else {
    LeftRun run(leaving, folder.path());
    run.leave();
    durable = run.durable, checkpoint = run.checkpoint;
    if (run.final_state) {
      EXPECT_TRUE(*run.final_state == expected[kSteps]);
    }
  }
  if (checkpoint) {
    TrainerRun run(calm);
    run.trainer->resume(folder.path() / "saved");
    EXPECT_EQ(run.trainer->completed_steps(), *checkpoint);
    EXPECT_TRUE(run.state() == expected[*checkpoint]);
  }
  RunOptions again = options_of(leaving, folder.path());
  again.start = TierStart::resume;
  TrainerRun run(again);
  const uint64_t step = run.trainer->completed_steps();
  EXPECT_GE(step, least_durable(leaving));
  if (durable) {
    EXPECT_EQ(step, *durable);
  }
  EXPECT_TRUE(run.state() == expected[step]) << "taken up at step " << step;
  while (run.trainer->completed_steps() < kSteps) run.trainer->step();
  EXPECT_TRUE(run.state() == expected[kSteps]);
}

INSTANTIATE_TEST_SUITE_P(All, RunEndings,
                         ::testing::Range(size_t{0}, all_leavings().size(),
                                          size_t{testing::kSanitized ? 11 : 1}),
                         [](const auto& instance) { return all_leavings()[instance.param].text(); });

// The table has a row for each of these ends and a column for each phase.
TEST(RunEndings, AreAllInTheDocs) {
  const std::string text = bytes_of_file(fs::path(TERRACE_TEST_SOURCES) / "../docs/faults.md");
  const auto words = [](std::string_view name) {
    std::string spaced(name);
    std::ranges::replace(spaced, '_', ' ');
    return spaced;
  };
  std::string columns = "| how a run ends |";
  for (const std::string_view phase : kPhases) columns += " " + words(phase) + " |";
  EXPECT_NE(text.find(columns), std::string::npos) << columns;
  for (const std::string_view way : kWays)
    EXPECT_NE(text.find("\n| " + words(way) + ": "), std::string::npos) << way;
}

}  // namespace
}  // namespace terrace::run_endings_test
