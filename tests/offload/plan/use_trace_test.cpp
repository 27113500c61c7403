// How many chunks a trace needs on the device at once, against a model that keeps every chunk by its number.
#include <terrace/offload/plan/use_trace.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace terrace::use_trace_test {
namespace {

std::vector<TensorSpec> random_tensors(std::mt19937& random) {
  const auto below = [&](uint32_t count) { return static_cast<uint32_t>(random() % count); };
  std::vector<TensorSpec> tensors;
  const uint32_t count = 1 + below(12);
  for (uint32_t t = 0; t < count; ++t) {
    const uint64_t elements = below(3) == 0 ? 1 + below(200) : 1 + below(5 * kTileElements);
    tensors.push_back({.name = "t" + std::to_string(t),
                       .shape = {elements},
                       .type = below(4) == 0 ? DataType::fp32 : DataType::bf16,
                       .trainable = below(4) != 0,
                       .group = 0,
                       .backward_uses = 1 + below(2)});
  }
  return tensors;
}

// Every tensor's backward uses in each micro-batch, spread over operations of one to three tensors.
std::vector<TensorUse> random_trace(const std::vector<TensorSpec>& tensors, uint32_t micro_batches,
                                    std::mt19937& random) {
  std::vector<TensorUse> trace;
  for (uint32_t m = 0; m < micro_batches; ++m) {
    std::vector<TensorId> backward;
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      trace.push_back({"forward " + std::to_string(t), UseKind::forward, {TensorId{t}}, m});
      backward.insert(backward.end(), tensors[t].backward_uses, TensorId{t});
    }
    std::shuffle(backward.begin(), backward.end(), random);
    for (size_t at = 0; at < backward.size();) {
      TensorUse use{"backward " + std::to_string(at), UseKind::backward, {}, m};
      for (size_t wanted = 1 + random() % 3; wanted > 0 && at < backward.size(); --wanted, ++at) {
        if (std::ranges::count(use.tensors, backward[at]) > 0) break;
        use.tensors.push_back(backward[at]);
      }
      trace.push_back(std::move(use));
    }
  }
  return trace;
}

// A gradient is live from the first backward use of a chunk's tensors in a micro-batch until each of them has
// had all of its own.
class NaiveDemand {
 public:
  NaiveDemand(const FlatSpace& space, const std::vector<TensorUse>& trace) : space_(space) {
    for (const TensorUse& use : trace) take(use);
  }
  uint32_t most(bool resident_parameters, bool resident_gradients) const {
    uint32_t trainable = 0, most = 0;
    for (const Section& section : space_.sections()) trainable += section.trainable ? section.chunk_count : 0;
    for (const auto& [parameters, gradients] : moments_)
      most = std::max(most, (resident_parameters ? space_.chunk_count() : parameters) +
                                (resident_gradients ? trainable : gradients));
    return most;
  }

 private:
  void take(const TensorUse& use) {
    if (use.micro_batch != micro_batch_) {
      micro_batch_ = use.micro_batch;
      live_.clear();
      uses_.clear();
    }
    std::set<uint32_t> parameters;
    for (const TensorId tensor : use.tensors) {
      for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
        const auto there = space_.tensors_of(ChunkId{c});
        if (std::ranges::count(there, tensor) == 0) continue;
        parameters.insert(c);
        if (use.kind == UseKind::backward && space_.tensor(tensor).trainable) live_.insert(c);
      }
    }
    moments_.emplace_back(parameters.size(), live_.size());
    if (use.kind != UseKind::backward) return;
    uses_.insert(use.tensors.begin(), use.tensors.end());
    std::erase_if(live_, [&](uint32_t chunk) {
      return std::ranges::all_of(space_.tensors_of(ChunkId{chunk}), [&](TensorId tensor) {
        return uses_.count(tensor) >= space_.tensor(tensor).backward_uses;
      });
    });
  }

  const FlatSpace& space_;
  std::vector<std::pair<uint32_t, uint32_t>> moments_;  // chunks of parameters and of gradients, by use
  std::set<uint32_t> live_;
  std::multiset<TensorId> uses_;
  uint32_t micro_batch_ = 0;
};

TEST(MinimumSlots, CountsTheChunksThatAreThereAtOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::vector<TensorSpec> tensors = random_tensors(random);
    const FlatSpace space(tensors, (1 + random() % 3) * kTileElements);
    const std::vector<TensorUse> trace = random_trace(tensors, 1 + round % 3, random);
    const NaiveDemand naive(space, trace);
    for (const bool parameters : {false, true}) {
      for (const bool gradients : {false, true}) {
        const SlotDemand demand = minimum_slots(space, trace, parameters, gradients);
        EXPECT_EQ(demand.slots, naive.most(parameters, gradients)) << parameters << gradients;
        EXPECT_LE(least_slots(space, parameters, gradients).slots, demand.slots) << parameters << gradients;
      }
    }
  }
}

TEST(LeastSlots, AreThoseOfTheLargestTensorByItself) {
  const SpaceLayout layout({{.name = "small", .shape = {100}},
                            {.name = "frozen", .shape = {7 * kTileElements}, .trainable = false},
                            {.name = "large", .shape = {4 * kTileElements}}},
                           kTileElements);
  const SlotDemand demand = least_slots(layout, false, false);
  EXPECT_EQ(demand.slots, 2 * layout.place(TensorId{2}).chunk_count);
  EXPECT_EQ(demand.operation, "large");
  EXPECT_EQ(least_slots(layout, true, true).slots, layout.chunk_count() + layout.sections()[0].chunk_count);
}

std::string text_of(std::span<const TensorUse> trace) {
  std::string text;
  for (const TensorUse& use : trace) {
    text += (text.empty() ? "" : ", ") + std::to_string(use.micro_batch) + ":" + use.operation;
    EXPECT_EQ(use.kind == UseKind::forward, use.operation.ends_with("/forward"));
    EXPECT_EQ(use.tensors.front(), TensorId{use.operation.starts_with("a") ? 0u : 1u});
  }
  return text;
}

TEST(TraceOfUnits, GoesForwardThroughAllAndBackInReverse) {
  const std::vector<TensorUnit> units = {{"a", {TensorId{0}, TensorId{2}}}, {"b", {TensorId{1}}}};
  EXPECT_EQ(text_of(trace_of_units(units, 1)), "0:a/forward, 0:b/forward, 0:b/backward, 0:a/backward");
  EXPECT_EQ(text_of(trace_of_units(units, 2)),
            "0:a/forward, 0:b/forward, 0:b/backward, 0:a/backward, "
            "1:a/forward, 1:b/forward, 1:b/backward, 1:a/backward");
  EXPECT_EQ(text_of(trace_of_units(units, 2, true)),
            "0:a/forward, 1:a/forward, 0:b/forward, 1:b/forward, "
            "0:b/backward, 1:b/backward, 0:a/backward, 1:a/backward");
  EXPECT_EQ(trace_of_units(units, 1).front().tensors, units.front().tensors);
  EXPECT_TRUE(trace_of_units({}, 3).empty());
}

// A plan tries chunks of every size, so it must not take time for each of them.
TEST(MinimumSlots, NeedsNoTableOfChunks) {
  const SpaceLayout layout({{.name = "huge", .shape = {1ull << 40}, .type = DataType::bf16}}, kTileElements);
  EXPECT_EQ(layout.chunk_count(), 1u << 28);
  const std::vector<TensorUse> trace = {{"f", UseKind::forward, {TensorId{0}}},
                                        {"b", UseKind::backward, {TensorId{0}}}};
  EXPECT_EQ(minimum_slots(layout, trace, false, false).slots, 2u << 28);
}

}  // namespace
}  // namespace terrace::use_trace_test
