// What is decided about the device's slots: the same whatever time does, and again when it is prescribed.
#include <terrace/offload/watch/decision_log.h>

#include <deque>

#include "offload/offloader_rig.h"
#include "support/expect_error.h"

namespace terrace::decision_log_test {
namespace {

using testing::expect_error;

// Keeps decisions, and gives them back.
class Kept final : public DecisionLog, public DecisionSource {
 public:
  void add(const Decision& decision) override {
    const std::string& operation = operations_.emplace_back(decision.operation);
    decisions.push_back({decision.kind, decision.number, operation});
  }
  const Decision* next() override { return next_ < decisions.size() ? &decisions[next_] : nullptr; }
  void advance() override { ++next_; }
  std::string place() const override { return "kept:" + std::to_string(next_ + 1); }

  size_t count(DecisionKind kind) const {
    return static_cast<size_t>(std::ranges::count(decisions, kind, &Decision::kind));
  }

  std::vector<Decision> decisions;

 private:
  std::deque<std::string> operations_;
  size_t next_ = 0;
};

void train(Case c, size_t threads, uint32_t steps = 3) {
  c.threads = threads;
  Rig rig(c);
  for (uint32_t step = 1; step <= steps; ++step) {
    rig.step(step, c.accumulation);
    const TensorId evaluated[] = {TensorId{2}};
    rig.offloader->begin_evaluation();
    { const Lease lease(*rig.offloader, "eval/block0", evaluated, UseKind::inference); }
    rig.offloader->end_evaluation();
  }
}

TEST(DecisionLog, IsTheSameWhateverEngineThreadsAndLinksDo) {
  struct Combination {
    Placement parameters;
    UpdateMode mode;
    PolicyKind policy;
  };
  for (const Combination& combination :
       {Combination{Placement::nvme, UpdateMode::after_backward, PolicyKind::opt},
        Combination{Placement::nvme, UpdateMode::next_forward, PolicyKind::opt},
        Combination{Placement::cpu, UpdateMode::during_backward, PolicyKind::opt},
        Combination{Placement::cpu, UpdateMode::next_forward, PolicyKind::lru}}) {
    SCOPED_TRACE(name_of(combination.mode));
    Kept first, slow;
    Case c{.parameters = combination.parameters, .states = Placement::nvme, .policy = combination.policy};
    c.mode = combination.mode;
    c.announced = combination.policy == PolicyKind::opt;
    c.decisions = &first;
    train(c, 1);
    c.decisions = &slow;
    c.engine = io::EngineKind::threads;
    c.h2d_bytes_per_second = 60 * kMiB;
    c.d2h_bytes_per_second = 25 * kMiB;
    train(c, 3);
    EXPECT_EQ(first.decisions, slow.decisions);
    for (const DecisionKind kind : {DecisionKind::fetch, DecisionKind::evict, DecisionKind::gradient,
                                    DecisionKind::landed, DecisionKind::stale})
      EXPECT_GT(first.count(kind), 0u) << name_of(kind);
    EXPECT_EQ(first.count(DecisionKind::gradient), first.count(DecisionKind::landed));
  }
}

TEST(DecisionLog, HasAFetchForEveryCopyAndAnEvictionForEveryChunkThatLeft) {
  Kept kept;
  Case c{.parameters = Placement::cpu, .states = Placement::cpu};
  c.decisions = &kept;
  Rig rig(c);
  for (uint64_t step = 1; step <= 3; ++step) rig.step(step, 1);
  const OffloadCounters counters = rig.offloader->report().counters();
  EXPECT_EQ(kept.count(DecisionKind::fetch), counters.demand_fetch_count);
  EXPECT_EQ(kept.count(DecisionKind::fetch) + kept.count(DecisionKind::ahead), counters.fetch_count);
  EXPECT_EQ(kept.count(DecisionKind::evict) + kept.count(DecisionKind::bypass), counters.eviction_count);
  EXPECT_EQ(kept.count(DecisionKind::step), 3u);
  EXPECT_EQ(kept.count(DecisionKind::update), 3u);
}

TEST(DecisionLog, ReplaysUnderAnotherPolicyAndDepth) {
  for (const PolicyKind policy : policy_kinds()) {
    SCOPED_TRACE(name_of(policy));
    Kept first, again;
    Case c{.parameters = Placement::cpu, .states = Placement::cpu, .accumulation = 2, .policy = policy};
    c.with_frozen = true;
    c.decisions = &first;
    train(c, 2);
    c.policy = policy == PolicyKind::opt ? PolicyKind::fifo : PolicyKind::opt;
    c.replay = &first;
    c.decisions = &again;
    train(c, 2);
    EXPECT_EQ(first.next(), nullptr) << "not replayed to its end";
    EXPECT_EQ(first.decisions, again.decisions);
  }
}

TEST(DecisionLog, ARunThatCannotDecideAsItSaysNamesThePlace) {
  Case c{.parameters = Placement::cpu, .states = Placement::cpu};
  Kept first;
  c.decisions = &first;
  train(c, 1);
  c.decisions = nullptr;
  const auto victim = std::ranges::find(first.decisions, DecisionKind::evict, &Decision::kind);
  ASSERT_NE(victim, first.decisions.end());
  const std::string place = "kept:" + std::to_string(victim - first.decisions.begin() + 1);
  Kept other = first;
  other.decisions[static_cast<size_t>(victim - first.decisions.begin())].number = 1000;
  c.replay = &other;
  expect_error(ErrorKind::config, {place}, [&] { train(c, 1); });
  Kept longer = first;
  c.replay = &longer;
  c.accumulation = 2;
  expect_error(ErrorKind::config, {"kept:", "this run comes to"}, [&] { train(c, 1); });
  Kept shorter = first;
  c.accumulation = 1;
  c.replay = &shorter;
  train(c, 1, 4);  // goes on with its own decisions
  EXPECT_EQ(shorter.next(), nullptr);
}

}  // namespace
}  // namespace terrace::decision_log_test
