#include "laws/kept_states.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <terrace/base/error.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/tiers/common_tier.h>

#include "laws/law_training.h"
#include "laws/law_world.h"
#include "support/rank_threads.h"
#include "support/scratch_folder.h"

namespace terrace::laws {
namespace {

// Of several ranks every one calls it, and the first one looks; none may end before the others.
void expect_same_bits(LawTraining& training, const StatesByStep& expected, uint64_t durable) {
  const std::vector<std::vector<std::byte>>& states = expected.states;
  const uint64_t step = training.completed_steps();
  EXPECT_GE(step, durable);
  ASSERT_LT(step, states.size());
  const auto difference = [&](const std::vector<std::byte>& state) -> std::string {
    const std::vector<std::byte> found = training.state();
    if (training.options().rank > 0 || same_bytes(found, state)) return "";
    const auto records = std::span(found).first(std::min<size_t>(expected.record_bytes, found.size()));
    const bool are_records = same_bytes(records, std::span(state).first(expected.record_bytes));
    return are_records ? "the parameters differ" : "the records differ";
  };
  EXPECT_EQ(difference(states[step]), "") << "taken up at step " << step;
  for (bool first = true; training.completed_steps() + 1 < states.size(); first = false) {
    training.choose_mode();
    training.step();
    if (first) training.begin_commit();
  }
  EXPECT_EQ(difference(states.back()), "") << "gone on from step " << step;
}

void expect_ranks_gone_on_from(const Combination& c, const std::filesystem::path& folder,
                               const StatesByStep& expected, uint64_t durable, bool may_be_corrupt) {
  const std::unique_ptr<testing::RankWorld> world = make_law_world(c);
  const std::vector<std::string> failures = testing::on_every_rank(*world, [&](Communicator& rank) {
    try {
      LawTraining training(
          c, {.folder = folder_of_rank(c, folder, rank.rank()), .start = TierStart::resume, .ranks = &rank});
      SCOPED_TRACE(describe(c));
      expect_same_bits(training, expected, durable);
    } catch (const Error& error) {
      EXPECT_TRUE(may_be_corrupt && (error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::peer))
          << error.what();
      throw;
    }
  });
  EXPECT_TRUE(may_be_corrupt || std::ranges::all_of(failures, &std::string::empty));
}

}  // namespace

std::vector<Combination> covering_array_with_commits(std::vector<OnlyLevels> only) {
  // No commits are kept of masters that are the program's parameters. The placement law has the threads.
  only.insert(
      only.end(),
      {{kStates, {"nvme"}}, {kCommits, {"1", "2"}}, {kMaster, {"whole", "remainder"}}, {kThreads, {"1"}}});
  // Chunks of one tile, where not every rank is to have something of each.
  const auto names_chunk = [](const OnlyLevels& some) { return some.factor == kChunk; };
  if (std::ranges::none_of(only, names_chunk)) only.push_back({kChunk, {"4096"}});
  std::vector<Combination> all = covering_array(Strength::pairs, only);
  for (Combination& c : all) {
    const std::unique_ptr<Model> model = make_law_model(c);
    const std::vector<TensorSpec> tensors = model->tensors();
    const bool has_frozen = !std::ranges::all_of(tensors, &TensorSpec::trainable);
    if (has_frozen) set_level(c, kParameters, "nvme");
  }
  return all;
}

std::vector<size_t> part_of_list(size_t part, size_t size, size_t every) {
  if (std::getenv("TERRACE_WHOLE_LAWS") != nullptr) every = 1;
  std::vector<size_t> indices;
  for (size_t i = part; i < size; i += kParts * every) indices.push_back(i);
  EXPECT_FALSE(indices.empty()) << "the list is too short for so many parts";
  return indices;
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

StatesByStep states_by_step(Combination combination, uint64_t steps) {
  set_level(combination, kBegins, "anew");
  // Ranks manage what a program with one rank may own itself, which lies elsewhere in the flat order.
  if (rounds_of(combination).ranks > 1) set_level(combination, kOwner, "managed");
  set_level(combination, kRanks, "1");
  const ScratchFolder folder;
  LawTraining training(combination, {.folder = folder.path()});
  StatesByStep expected{{training.state()}, training.records().size()};
  while (training.completed_steps() < steps) {
    training.choose_mode();
    training.step();
    expected.states.push_back(training.state());
    training.change_budget();
  }
  return expected;
}

bool expect_gone_on_from(const Combination& combination, const std::filesystem::path& folder,
                         const StatesByStep& expected, uint64_t durable, bool may_be_corrupt) {
  const uint32_t ranks = rounds_of(combination).ranks;
  std::vector<ShardPaths> shards;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    shards.push_back(tier_folders(combination, folder_of_rank(combination, folder, rank)));
  const auto is_there = [&]() -> std::pair<bool, std::string> {
    if (ranks == 1) {
      const FoundTier found = look_at_tier(shards.front());
      return {found.whole, found.trouble};
    }
    const CommonTier found = common_tier(shards);
    return {found.commit > 0, found.trouble};
  };
  if (const auto [there, trouble] = is_there(); !there) {
    EXPECT_TRUE(durable == 0 || may_be_corrupt) << trouble;
    return false;
  }
  if (ranks > 1) {
    expect_ranks_gone_on_from(combination, folder, expected, durable, may_be_corrupt);
    return true;
  }
  try {
    LawTraining training(combination, {.folder = folder, .start = TierStart::resume});
    expect_same_bits(training, expected, durable);
  } catch (const Error& error) {
    EXPECT_TRUE(may_be_corrupt && error.kind() == ErrorKind::corrupt) << error.what();
  }
  return true;
}

}  // namespace terrace::laws
