// What is decided about the device's slots: the same whatever time does.
#include <terrace/offload/watch/decision_log.h>

#include <deque>

#include "offload/offloader_rig.h"

namespace terrace::decision_log_test {
namespace {

class Kept final : public DecisionLog {
 public:
  void add(const Decision& decision) override {
    const std::string& operation = operations_.emplace_back(decision.operation);
    decisions.push_back({decision.kind, decision.number, operation});
  }

  size_t count(DecisionKind kind) const {
    return static_cast<size_t>(std::ranges::count(decisions, kind, &Decision::kind));
  }

  std::vector<Decision> decisions;

 private:
  std::deque<std::string> operations_;
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
        Combination{Placement::cpu, UpdateMode::next_forward, PolicyKind::gemini}}) {
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

}  // namespace
}  // namespace terrace::decision_log_test
