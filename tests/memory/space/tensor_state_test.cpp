// The lifecycle tables against lists written down independently of them, and the states that follow them.
#include <terrace/memory/space/tensor_state.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace terrace::tensor_state_test {
namespace {

using Pairs = std::set<std::pair<std::string, std::string>>;

// Written from the description of a step, not from the table: what may follow what.
const Pairs kExpectedTensorPairs = {
    {"free", "hold"},
    {"hold", "compute"},
    {"hold", "updating"},
    {"compute", "hold"},
    {"compute", "hold_after_forward"},
    {"compute", "hold_after_backward"},
    {"hold_after_forward", "compute"},
    {"hold_after_forward", "grad_ready"},
    {"hold_after_forward", "hold"},
    {"hold_after_backward", "compute"},
    {"hold_after_backward", "grad_ready"},
    {"hold_after_backward", "hold"},
    {"grad_ready", "compute"},
    {"grad_ready", "reducing"},
    {"grad_ready", "hold"},
    {"reducing", "compute"},
    {"reducing", "hold"},
    {"reducing", "updating"},
    {"updating", "hold"},
};

const Pairs kExpectedChunkPairs = {
    {"absent", "fetching"}, {"absent", "resident"}, {"fetching", "resident"},
    {"fetching", "failed"}, {"resident", "absent"}, {"failed", "absent"},
};

std::vector<TensorState> all_states() {
  std::vector<TensorState> states;
  for (size_t i = 0; i < kTensorStateCount; ++i) states.push_back(static_cast<TensorState>(i));
  return states;
}

FlatSpace two_tensors() {
  return FlatSpace({{"wte", {100}}, {"h.0.mlp", {100}}}, kTileElements);
}

constexpr TensorId kTensor{1};

// The shortest way from free to a state.
std::vector<TensorState> way_to(TensorState state) {
  using S = TensorState;
  static const std::map<S, std::vector<S>> ways = {
      {S::free, {}},
      {S::hold, {S::hold}},
      {S::compute, {S::hold, S::compute}},
      {S::hold_after_forward, {S::hold, S::compute, S::hold_after_forward}},
      {S::hold_after_backward, {S::hold, S::compute, S::hold_after_backward}},
      {S::grad_ready, {S::hold, S::compute, S::hold_after_backward, S::grad_ready}},
      {S::reducing, {S::hold, S::compute, S::hold_after_backward, S::grad_ready, S::reducing}},
      {S::updating, {S::hold, S::updating}},
  };
  return ways.at(state);
}

void walk(TensorStates& states, const std::vector<TensorState>& way) {
  for (TensorState state : way) states.change(kTensor, state);
}

TEST(TensorState, AllowsExactlyTheExpectedPairs) {
  for (TensorState from : all_states()) {
    for (TensorState to : all_states()) {
      const bool expected =
          kExpectedTensorPairs.contains({std::string(name_of(from)), std::string(name_of(to))});
      EXPECT_EQ(is_legal(from, to), expected) << name_of(from) << " -> " << name_of(to);
    }
  }
  EXPECT_EQ(kTransitions.size(), kExpectedTensorPairs.size());
}

TEST(TensorState, ChangesAlongExactlyTheExpectedPairs) {
  const FlatSpace space = two_tensors();
  for (TensorState from : all_states()) {
    for (TensorState to : all_states()) {
      TensorStates states(space);
      walk(states, way_to(from));
      ASSERT_EQ(states.state(kTensor), from);
      if (kExpectedTensorPairs.contains({std::string(name_of(from)), std::string(name_of(to))})) {
        states.change(kTensor, to);
        EXPECT_EQ(states.state(kTensor), to);
      } else {
        EXPECT_THROW(states.change(kTensor, to), std::logic_error) << name_of(from) << " -> " << name_of(to);
        EXPECT_EQ(states.state(kTensor), from);
      }
      EXPECT_EQ(states.state(TensorId{0}), TensorState::free);
    }
  }
}

TEST(ChunkState, AllowsExactlyTheExpectedPairs) {
  for (size_t i = 0; i < kChunkStateCount; ++i) {
    for (size_t j = 0; j < kChunkStateCount; ++j) {
      const auto from = static_cast<ChunkState>(i);
      const auto to = static_cast<ChunkState>(j);
      const bool expected =
          kExpectedChunkPairs.contains({std::string(name_of(from)), std::string(name_of(to))});
      EXPECT_EQ(is_legal(from, to), expected) << name_of(from) << " -> " << name_of(to);
    }
  }
  EXPECT_EQ(kChunkTransitions.size(), kExpectedChunkPairs.size());
}

TEST(TensorState, HasANameOfItsOwnForEveryState) {
  std::set<std::string_view> names;
  for (TensorState state : all_states()) names.insert(name_of(state));
  EXPECT_EQ(names.size(), kTensorStateCount);
}

TEST(TensorState, LetsATiedTensorGoThroughTwoMicroBatchesAndAnUpdate) {
  using S = TensorState;
  const FlatSpace space = two_tensors();
  TensorStates states(space);
  const std::vector<S> forward_twice = {S::compute, S::hold_after_forward, S::compute, S::hold_after_forward};
  const std::vector<S> backward_twice = {S::compute, S::hold_after_backward, S::compute,
                                         S::hold_after_backward};
  walk(states, {S::hold});
  walk(states, forward_twice);
  walk(states, backward_twice);
  walk(states, {S::grad_ready, S::reducing, S::hold});
  walk(states, forward_twice);
  walk(states, backward_twice);
  walk(states, {S::grad_ready, S::reducing, S::updating, S::hold, S::compute, S::hold});
  EXPECT_EQ(states.state(kTensor), S::hold);
}

TEST(TensorState, ThrowsWithTheTensorBothStatesAndItsLastEightTransitions) {
  using S = TensorState;
  const FlatSpace space = two_tensors();
  TensorStates states(space);
  walk(states, {S::hold, S::compute, S::hold_after_forward, S::compute, S::hold_after_backward, S::grad_ready,
                S::reducing, S::updating, S::hold, S::compute});
  try {
    states.change(kTensor, S::reducing);
    FAIL() << "compute -> reducing went through";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(
        error.what(),
        "tensor \"h.0.mlp\" cannot go from compute to reducing; its last states: "
        "compute -> hold_after_forward -> compute -> hold_after_backward -> grad_ready -> reducing -> "
        "updating -> hold -> compute");
  }
  EXPECT_EQ(states.state(kTensor), S::compute);
}

TEST(TensorState, KeepsTheWholeHistoryUntilThereAreMoreThanEightTransitions) {
  using S = TensorState;
  const FlatSpace space = two_tensors();
  TensorStates states(space);
  EXPECT_EQ(states.history(kTensor), "free");
  std::vector<std::string> passed = {"free"};
  std::vector<S> way = {S::hold};
  for (int i = 0; i < 12; ++i) way.insert(way.end(), {S::compute, S::hold_after_forward});
  for (S state : way) {
    states.change(kTensor, state);
    passed.push_back(std::string(name_of(state)));
    std::string expected;
    for (size_t i = passed.size() > 9 ? passed.size() - 9 : 0; i < passed.size(); ++i) {
      expected += (expected.empty() ? "" : " -> ") + passed[i];
    }
    EXPECT_EQ(states.history(kTensor), expected);
  }
  EXPECT_EQ(states.history(TensorId{0}), "free");
}

TEST(TensorState, HoldsWhenNobodyComputesOrUpdates) {
  const FlatSpace space = two_tensors();
  const std::vector<TensorId> both = {TensorId{0}, kTensor};
  for (TensorState state : all_states()) {
    TensorStates states(space);
    walk(states, way_to(state));
    const bool holds = state != TensorState::compute && state != TensorState::updating;
    EXPECT_EQ(states.all_hold(both), holds) << name_of(state);
    EXPECT_EQ(is_hold(state), holds) << name_of(state);
    EXPECT_TRUE(states.all_hold(std::vector<TensorId>{TensorId{0}}));
    EXPECT_TRUE(states.all_hold({}));
  }
}

// The table as GitHub Markdown.
template <typename Table>
std::string markdown(const Table& table) {
  std::string text = "| from | to | when |\n|---|---|---|\n";
  for (const auto& row : table) {
    text += "| `" + std::string(name_of(row.from)) + "` | `" + std::string(name_of(row.to)) + "` | " +
            std::string(row.when) + " |\n";
  }
  return text;
}

TEST(TensorState, PrintsOneTableRowPerTransition) {
  const std::string table = markdown(kTransitions);
  EXPECT_EQ(table.substr(0, table.find("| `free`")), "| from | to | when |\n|---|---|---|\n");
  EXPECT_NE(table.find("| `hold` | `compute` | leased by an operation |\n"), std::string::npos);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), static_cast<int>(kTransitions.size() + 2));
}

// Beside this file's folder in the source tree.
std::string tensors_page() {
  const std::string here = __FILE__;
  const std::string root = here.substr(0, here.rfind("/tests/memory/"));
  std::ifstream file(root + "/docs/architecture_tensors.md");
  EXPECT_TRUE(file.is_open()) << root;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(TensorState, HasItsTransitionTableInThePageOfTensors) {
  const std::string table = markdown(kTransitions);
  EXPECT_NE(tensors_page().find("\n\n" + table + "\n"), std::string::npos) << "it should hold\n" << table;
}

TEST(ChunkState, HasItsTransitionTableInThePageOfTensors) {
  const std::string table = markdown(kChunkTransitions);
  EXPECT_NE(tensors_page().find("\n\n" + table + "\n"), std::string::npos) << "it should hold\n" << table;
}

}  // namespace
}  // namespace terrace::tensor_state_test
