// What must end before anybody reads or replaces the state.
#include <terrace/offload/state/step_boundary.h>

#include <gtest/gtest.h>

#include <vector>

#include "offload/step/step_rig.h"
#include "support/expect_error.h"

namespace terrace::step_boundary_test {
namespace {

struct StepBoundaryTest : ::testing::Test {
  StepBoundaryTest() {
    boundary.on_update_over([this](bool is_whole) { over.push_back(is_whole); });
    custody.begin_loading(StatePart::trained);
    custody.end_loading(StatePart::trained);
  }
  // A step has left an update that runs beside the next one.
  void leave_update() {
    boundary.begin_step();
    boundary.begin_change();
    runner.set_mode(UpdateMode::next_forward);
    rig.land_all(0.5f);
    runner.set_constants(rig.settings, 0);
    runner.run({});
    boundary.end_step(false);
  }
  StepRig rig;
  CallOrder order{rig.space, 1, false};
  StateCustody custody{false};
  UpdateRunner runner = rig.make_runner();
  StepBoundary boundary{order, custody, runner};
  std::vector<bool> over;
};

TEST_F(StepBoundaryTest, GivesTheStateBackWhenTheUpdateIsOver) {
  leave_update();
  EXPECT_TRUE(boundary.is_updating());
  EXPECT_FALSE(custody.is_whole());
  boundary.require_whole_or_updating("cannot begin");
  static_cast<void>(boundary.whole("cannot read"));
  EXPECT_EQ(rig.master(0), 0.5f);
  EXPECT_EQ(over, std::vector<bool>{true});
}

TEST_F(StepBoundaryTest, LeavesTheStateToTheStepThatChangesIt) {
  leave_update();
  boundary.begin_step();
  boundary.finish_update();
  boundary.begin_change();
  EXPECT_TRUE(boundary.step_changes_state());
  testing::expect_error(ErrorKind::cancelled, {}, [&] { static_cast<void>(boundary.whole("cannot read")); });
  boundary.end_step(true);
  static_cast<void>(boundary.whole("cannot read"));
}

// The update of a step that goes backward takes gradients until the step ends.
TEST_F(StepBoundaryTest, LeavesAnUpdateWithinAStepToItsEnd) {
  runner.set_mode(UpdateMode::during_backward);
  boundary.begin_step();
  boundary.begin_change();
  runner.set_constants(rig.settings, 0);
  runner.begin_beside(true);
  boundary.finish_update();
  EXPECT_TRUE(boundary.is_updating());
  EXPECT_FALSE(custody.is_whole());
  EXPECT_TRUE(over.empty());
  runner.wait();
  boundary.end_step(true);
  EXPECT_TRUE(custody.is_whole());
}

TEST_F(StepBoundaryTest, RefusesWhileAnythingIsOpen) {
  order.begin_step();
  testing::expect_error(ErrorKind::cancelled, {"a step is open"},
                        [&] { boundary.require_rest("cannot load"); });
  testing::expect_error(ErrorKind::cancelled, {"a step is open"},
                        [&] { boundary.require_whole_or_updating("cannot begin"); });
}

TEST_F(StepBoundaryTest, NeedsAWholeStateOfThatWhichBeginsAStep) {
  boundary.begin_step();
  boundary.begin_change();
  boundary.end_step(false);  // a step that failed
  testing::expect_error(ErrorKind::cancelled, {},
                        [&] { boundary.require_whole_or_updating("cannot begin"); });
}

}  // namespace
}  // namespace terrace::step_boundary_test
