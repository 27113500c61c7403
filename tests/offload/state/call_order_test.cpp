// Calls of an Offloader out of their order: an error that says what is open, and a training that goes on as
// if they had not been made.
#include <terrace/offload/state/call_order.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "offload/offloader_rig.h"

namespace terrace::call_order_test {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_THAT((std::array{ErrorKind::misuse, ErrorKind::cancelled}), ::testing::Contains(error.kind()));
    EXPECT_FALSE(error.parts().advice.empty());
    return error.parts().reason;
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(CallOrder, SaysWhatIsOpen) {
  const FlatSpace space({{"w", {100}}, {"frozen", {100}, DataType::bf16, false}}, kTileElements);
  CallOrder order(space, 2, false);
  const auto step = [&] { order.require_step_between_uses("cannot abandon a step"); };
  EXPECT_EQ(refusal_of(step), "neither a step nor an evaluation is open");
  EXPECT_EQ(refusal_of([&] { order.require_use("look", UseKind::inference); }),
            "neither a step nor an evaluation is open");
  order.begin_evaluation();
  EXPECT_EQ(refusal_of([&] { order.require_nothing_open("cannot commit"); }), "an evaluation is open");
  EXPECT_EQ(refusal_of([&] { order.require_use("h0/forward", UseKind::forward); }), "an evaluation is open");
  order.begin_use("look");
  order.require_use("look closer", UseKind::inference);
  order.begin_use("look closer");
  EXPECT_EQ(refusal_of([&] { order.end_evaluation(); }), "look closer holds its lease");
  order.end_use("look");
  EXPECT_EQ(refusal_of([&] { order.end_evaluation(); }), "look holds its lease");
  order.require_leased(TensorId{1}, true);
  EXPECT_EQ(refusal_of([&] { order.require_gradient(TensorId{0}, false); }), "look holds its lease");
  EXPECT_EQ(refusal_of([&] { order.require_hand_over(TensorId{0}); }), "look holds its lease");
  order.end_use("");
  order.end_evaluation();
  order.begin_step();
  EXPECT_EQ(refusal_of([&] { order.require_whole_step("cannot update"); }),
            "a step is open, in micro-batch 1 of 2");
  EXPECT_EQ(refusal_of([&] { order.require_selectable(1); }), "a step is open, in micro-batch 1 of 2");
  EXPECT_EQ(refusal_of([&] { order.require_use_to_end(); }), "a step is open, in micro-batch 1 of 2");
  order.begin_use("h0/backward");
  order.require_gradient(TensorId{0}, true);
  order.require_hand_over(TensorId{0});
  EXPECT_EQ(refusal_of([&] { order.require_gradient(TensorId{1}, true); }), "h0/backward holds its lease");
  EXPECT_EQ(refusal_of([&] { order.require_hand_over(TensorId{1}); }), "h0/backward holds its lease");
  EXPECT_EQ(refusal_of([&] { order.require_leased(TensorId{0}, false); }), "h0/backward holds its lease");
  EXPECT_EQ(refusal_of([&] { order.require_leased(TensorId{7}, true); }), "there are 2");
  EXPECT_EQ(refusal_of(step), "h0/backward holds its lease");
  order.end_use("");
  order.end_micro_batch();
  EXPECT_TRUE(order.last_micro_batch_is_open());
  order.end_micro_batch();
  EXPECT_EQ(refusal_of([&] { order.require_micro_batch("cannot end a micro-batch"); }),
            "a step is open, and its 2 micro-batches have ended");
  EXPECT_EQ(refusal_of([&] { order.require_use("h0/forward", UseKind::forward); }),
            "a step is open, and its 2 micro-batches have ended");
  order.require_whole_step("cannot update");
  order.end_step();
  EXPECT_TRUE(order.nothing_is_open());
}

TEST(CallOrder, LetsMicroBatchesBeSelectedThatAreOpenTogether) {
  const FlatSpace space({{"w", {100}}}, kTileElements);
  CallOrder order(space, 3, true);
  EXPECT_EQ(refusal_of([&] { order.require_selectable(1); }), "neither a step nor an evaluation is open");
  order.begin_step();
  order.require_selectable(2);
  order.select_micro_batch(2);
  EXPECT_EQ(refusal_of([&] { order.require_selectable(3); }), "a step is open, with its 3 micro-batches");
  EXPECT_TRUE(order.last_micro_batch_is_open());
  order.select_last_micro_batch();
  order.end_micro_batch();
  order.require_whole_step("cannot update");
}

enum class State { idle, step, use, ended, evaluation };

// Every call of the facade that some state forbids, and the states that allow it.
struct Call {
  const char* name;
  std::vector<State> allowed;
  std::function<void(Rig&)> call;
};

std::vector<Call> calls() {
  static const std::vector<TensorId> kWeight = {TensorId{0}};
  const auto settings = [](Rig&) { return UpdateSettings{}; };
  return {
      {"begin_step", {State::idle}, [](Rig& rig) { rig.offloader->begin_step(); }},
      {"end_micro_batch", {State::step}, [](Rig& rig) { rig.offloader->end_micro_batch(); }},
      {"update", {}, [settings](Rig& rig) { rig.offloader->update(settings(rig)); }},  // without a group
      {"abandon_step", {State::step, State::ended}, [](Rig& rig) { rig.offloader->abandon_step(); }},
      {"set_update_mode",
       {State::idle},
       [](Rig& rig) { rig.offloader->set_update_mode(UpdateMode::after_backward); }},
      {"announce_update",
       {State::step},
       [settings](Rig& rig) { rig.offloader->announce_update(settings(rig)); }},
      {"set_host_budget",
       {State::idle},
       [](Rig& rig) { rig.offloader->budget().set(rig.offloader->budget().in_force()); }},
      {"begin_evaluation", {State::idle}, [](Rig& rig) { rig.offloader->begin_evaluation(); }},
      {"end_evaluation", {State::evaluation}, [](Rig& rig) { rig.offloader->end_evaluation(); }},
      {"forward",
       {State::step, State::use},
       [](Rig& rig) { const Lease lease(*rig.offloader, "more/forward", kWeight, UseKind::forward); }},
      {"inference",
       {State::evaluation},
       [](Rig& rig) { const Lease lease(*rig.offloader, "more/look", kWeight, UseKind::inference); }},
      {"end_use", {State::use}, [](Rig& rig) { rig.offloader->end_use(); }},
      {"end_lease", {}, [](Rig& rig) { rig.offloader->end_lease(1'000'000); }},
      {"lease of a tensor that does not exist",
       {},
       [](Rig& rig) {
         const std::vector<TensorId> none = {TensorId{1000}};
         rig.offloader->begin_use("more/none", none, UseKind::forward);
       }},
      {"lease of a tensor twice",
       {},
       [](Rig& rig) {
         const std::vector<TensorId> twice = {TensorId{0}, TensorId{0}};
         rig.offloader->begin_use("more/twice", twice, UseKind::forward);
       }},
      {"parameter_address", {}, [](Rig& rig) { rig.offloader->parameter_address(TensorId{1000}); }},
      {"hand_over_gradient",  // where leases write gradients
       {},
       [](Rig& rig) {
         const std::vector<std::byte> gradient(rig.specs[1].element_count() * bytes_of(rig.specs[1].type));
         rig.offloader->hand_over_gradient(TensorId{1}, gradient);
       }},
      {"parameter", {}, [](Rig& rig) { rig.offloader->parameter(TensorId{1}); }},  // which no lease names
      {"gradient",
       {},
       [](Rig& rig) { rig.offloader->gradient(TensorId{0}); }},  // of a lease that goes forward
      {"select_micro_batch", {}, [](Rig& rig) { rig.offloader->select_micro_batch(2); }},
      {"begin_commit", {}, [](Rig& rig) { rig.offloader->commits().begin(""); }},  // where none are kept
      {"pin", {}, [](Rig& rig) { rig.offloader->commits().pin(); }},
      {"export_records", {State::idle}, [](Rig& rig) { rig.offloader->state().export_records([](auto) {}); }},
      {"import_frozen", {State::idle}, [](Rig& rig) { rig.offloader->state().import_frozen([](auto) {}); }},
      {"read_parameter",
       {},
       [](Rig& rig) { rig.offloader->state().read_parameter(TensorId{0}, {}); }},  // into nothing
  };
}

// Makes every forbidden call, and says so where one of them is not refused.
void attempt(Rig& rig, State state) {
  for (const Call& call : calls()) {
    if (std::ranges::find(call.allowed, state) != call.allowed.end()) continue;
    SCOPED_TRACE(call.name);
    refusal_of([&] { call.call(rig); });
  }
}

TEST(CallOrder, IsHeldByTheOffloaderWhichGoesOnAsIfNothingHadBeenCalled) {
  const std::vector<TensorId> weight = {TensorId{0}};
  Rig attacked({Placement::cpu, Placement::cpu}), left_alone({Placement::cpu, Placement::cpu});
  for (uint64_t step = 1; step <= 2; ++step) {
    attempt(attacked, State::idle);
    attacked.offloader->begin_evaluation();
    attempt(attacked, State::evaluation);
    attacked.offloader->end_evaluation();
    attacked.offloader->begin_step();
    attempt(attacked, State::step);
    {
      const Lease lease(*attacked.offloader, "early/forward", weight, UseKind::forward);
      attempt(attacked, State::use);
    }
    attacked.offloader->end_micro_batch();
    attempt(attacked, State::ended);
    attacked.offloader->abandon_step();
    attacked.step(step, 1);
    left_alone.step(step, 1);
  }
  std::vector<std::byte> records[2];
  for (Rig* rig : {&attacked, &left_alone}) {
    rig->offloader->state().export_records([&](std::span<const std::byte> tiles) {
      records[rig == &attacked].insert(records[rig == &attacked].end(), tiles.begin(), tiles.end());
    });
  }
  EXPECT_EQ(records[0], records[1]);
}

}  // namespace
}  // namespace terrace::call_order_test
