// How long the step thread waited for an update that runs beside it: counted where it waits, and nowhere
// else. The update's disk answers once the step thread waits for the update, so that there is such a wait.
#include <gtest/gtest.h>

#include <atomic>

#include "offload/commits/commit_rig.h"
#include "offload/offloader_rig.h"
#include "support/patience.h"

namespace terrace::update_wait_test {
namespace {

// In case of a mistake it opens when the patience of tests is over, so that the test ends.
class UpdateGate {
 public:
  void operator()() {
    testing::comes_true([&] {
      if (!closed_) return true;
      const std::optional<uint64_t> wait = offloader_->report().watch().current();
      const std::string text = wait ? offloader_->report().watch().describe(*wait).value_or("") : "";
      const bool is_seen = text.find("update") != std::string::npos;
      if (is_seen) ++waits_seen_;
      return is_seen;
    });
  }
  void close(const Offloader& offloader) {
    offloader_ = &offloader;
    closed_ = true;
  }
  uint32_t waits_seen() const { return waits_seen_; }

 private:
  const Offloader* offloader_ = nullptr;
  std::atomic<bool> closed_{false};
  std::atomic<uint32_t> waits_seen_{0};
};

// The engine of the updates is made when their mode is set, behind that of the step and of reading
// parameters.
Case gated(Placement parameters, UpdateMode mode, UpdateGate& gate) {
  Case c{parameters, Placement::nvme};
  c.engine = io::EngineKind::threads;
  c.mode = mode;
  c.decorate = [&gate, parameters, made = uint32_t{0}](
                   std::unique_ptr<io::Engine> engine) mutable -> std::unique_ptr<io::Engine> {
    const uint32_t victim = parameters == Placement::nvme ? 2 : 1;
    if (made++ != victim) return engine;
    return std::make_unique<GateEngine>(std::move(engine), [&gate] { gate(); });
  };
  return c;
}

void use_embedding(Rig& rig, UseKind kind) {
  const std::vector<TensorId> first = {TensorId{0}};
  const Lease lease(*rig.offloader, kind == UseKind::forward ? "mb0/embed/forward" : "mb0/embed/backward",
                    first, kind);
}

TEST(UpdateWait, IsCountedWhereAnOperationNeedsWhatIsNotUpdatedYet) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    SCOPED_TRACE(name_of(parameters));
    UpdateGate gate;
    Rig rig(gated(parameters, UpdateMode::next_forward, gate));
    rig.step(1, 1);
    rig.offloader->finish_update();
    gate.close(*rig.offloader);
    const OffloadCounters before = rig.offloader->report().counters();
    rig.step(2, 1);  // no update is pending in it
    const OffloadCounters quiet = rig.offloader->report().counters() - before;
    rig.offloader->begin_step();
    use_embedding(rig, UseKind::forward);
    const OffloadCounters moved = rig.offloader->report().counters() - before;
    EXPECT_EQ(quiet.pending_update_wait_ns, 0u);
    EXPECT_GT(moved.pending_update_wait_ns, 0u);
    EXPECT_GE(moved.fetch_wait_ns, moved.pending_update_wait_ns);
    EXPECT_GT(gate.waits_seen(), 0u);
    rig.offloader->abandon_step();
  }
}

TEST(UpdateWait, IsCountedWhereGradientsComeBeforeTheUpdateIsOver) {
  for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
    SCOPED_TRACE(name_of(parameters));
    UpdateGate gate;
    Rig rig(gated(parameters, UpdateMode::next_forward, gate));
    rig.step(1, 1);
    rig.offloader->finish_update();
    gate.close(*rig.offloader);
    const OffloadCounters before = rig.offloader->report().counters();
    rig.step(2, 1);
    rig.offloader->begin_step();
    use_embedding(rig, UseKind::backward);
    EXPECT_FALSE(rig.offloader->update_pending());
    EXPECT_GT((rig.offloader->report().counters() - before).pending_update_wait_ns, 0u);
    EXPECT_GT(gate.waits_seen(), 0u);
    rig.offloader->abandon_step();
  }
}

TEST(UpdateWait, IsThatOfTheEndOfAStepDuringBackward) {
  UpdateGate gate;
  Rig rig(gated(Placement::cpu, UpdateMode::during_backward, gate));
  rig.step(1, 1);
  gate.close(*rig.offloader);
  const OffloadCounters before = rig.offloader->report().counters();
  rig.step(2, 1);
  const OffloadCounters moved = rig.offloader->report().counters() - before;
  EXPECT_GT(moved.pending_update_wait_ns, 0u);
  EXPECT_GE(moved.update_ns, moved.pending_update_wait_ns);
}

TEST(UpdateWait, IsNoneWhereUpdatesRunAfterBackward) {
  Rig rig({Placement::nvme, Placement::nvme});
  for (uint64_t step = 1; step <= 3; ++step) rig.step(step, 1);
  EXPECT_EQ(rig.offloader->report().counters().pending_update_wait_ns, 0u);
}

}  // namespace
}  // namespace terrace::update_wait_test
