// Steps that are never quite the one before: experts without tokens, layers that are left out, evaluations in
// between, a sequence that is cut in more or fewer pieces. Nothing of it fails, and what happened is what the
// next step is planned by.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <terrace/base/log.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>

namespace terrace::replanning_test {
namespace {

constexpr uint32_t kLayers = 4, kExperts = 5, kParts = kExperts + 1;

std::vector<TensorSpec> tensors() {
  std::vector<TensorSpec> list;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t e = 0; e < kParts; ++e) {
      TensorSpec spec;
      spec.name = "h." + std::to_string(l) + (e == 0 ? ".attn" : ".expert." + std::to_string(e));
      spec.shape = {kTileElements};
      spec.type = DataType::bf16;
      spec.trainable = !(l == 1 && e <= 2);  // some are frozen
      list.push_back(spec);
    }
  }
  return list;
}

// A step or an evaluation, forward.
std::vector<TensorUse> random_uses(std::mt19937& random, const std::string& prefix, UseKind kind) {
  std::vector<TensorUse> uses;
  const uint32_t pieces = 1 + random() % 2;  // of the sequence
  for (uint32_t l = 0; l < kLayers; ++l) {
    if (random() % 8 == 0) continue;
    for (uint32_t piece = 0; piece < pieces; ++piece) {
      const std::string layer = prefix + "h." + std::to_string(l) + "/" + std::to_string(piece);
      uses.push_back({layer + ".attn", kind, {TensorId{l * kParts}}});
      for (uint32_t e = 1; e <= kExperts; ++e) {
        if (random() % 2 == 0) continue;  // it has no tokens
        uses.push_back({layer + ".expert." + std::to_string(e), kind, {TensorId{l * kParts + e}}});
      }
    }
  }
  return uses;
}

// The uses of a micro-batch: forward, and back in each layer that is used, once.
std::vector<TensorUse> there_and_back(const std::vector<TensorUse>& forward) {
  std::vector<TensorUse> uses = forward;
  std::vector<TensorId> done;
  for (size_t u = forward.size(); u-- > 0;) {
    if (std::ranges::find(done, forward[u].tensors[0]) != done.end()) continue;
    done.push_back(forward[u].tensors[0]);
    uses.push_back({forward[u].operation + "/back", UseKind::backward, forward[u].tensors});
  }
  return uses;
}

class Mixture {
 public:
  Mixture(PolicyKind policy, uint32_t slots) : space_(tensors(), kTileElements), workers_(1) {
    OffloadOptions options;
    options.parameters = options.states = Placement::cpu;
    options.policy = policy;
    options.lock_host_memory = false;
    options.device_budget_bytes = slots * space_.param_slot_bytes();
    options.host_budget_bytes = kGiB;
    device_ = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{options.device_budget_bytes});
    offloader_ =
        std::make_unique<Offloader>(space_, options, std::span<const TensorUse>(), *device_, workers_, log_);
    offloader_->state().initialise(
        [](TensorId, uint64_t, std::span<float> values) { std::ranges::fill(values, 0.5f); });
  }

  // Returns what it moved.
  OffloadCounters step(const std::vector<TensorUse>& uses) {
    const OffloadCounters before = offloader_->report().counters();
    const std::vector<ScheduledUse> planned(offloader_->report().schedule().uses().begin(),
                                            offloader_->report().schedule().uses().end());
    offloader_->begin_step();
    for (const TensorUse& use : uses) {
      const Lease lease(*offloader_, use.operation, use.tensors, use.kind);
      const auto now = offloader_->report().schedule().uses();
      EXPECT_TRUE(std::ranges::equal(now, planned)) << "planned anew in the middle of a step";
    }
    offloader_->end_micro_batch();
    const std::vector<OptimizerSettings> groups(1);
    offloader_->update({groups, ++steps_, 0});
    return offloader_->report().counters() - before;
  }

  void evaluate(const std::vector<TensorUse>& uses) {
    offloader_->begin_evaluation();
    for (const TensorUse& use : uses) const Lease lease(*offloader_, use.operation, use.tensors, use.kind);
    offloader_->end_evaluation();
  }

  Offloader& offloader() { return *offloader_; }
  const FlatSpace& space() const { return space_; }

 private:
  const FlatSpace space_;
  Workers workers_;
  MemoryLog log_;
  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<Offloader> offloader_;
  uint64_t steps_ = 0;
};

TEST(Replanning, EveryStepIsPlannedByTheOneBeforeWhateverHappened) {
  for (const PolicyKind policy : {PolicyKind::opt, PolicyKind::gemini}) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      std::mt19937 random(seed);
      Mixture mixture(policy, 4 + random() % 12);
      for (uint32_t step = 0; step < 8; ++step) {
        const auto uses = there_and_back(random_uses(random, "", UseKind::forward));
        mixture.step(uses);
        const auto recorded = mixture.offloader().report().schedule().uses();
        ASSERT_EQ(recorded.size(), uses.size());
        for (size_t u = 0; u < uses.size(); ++u) {
          EXPECT_EQ(recorded[u].operation, uses[u].operation);
          EXPECT_EQ(recorded[u].kind, uses[u].kind);
          std::vector<ChunkId> chunks;
          collect_chunks(mixture.space(), uses[u].tensors, chunks);
          EXPECT_EQ(recorded[u].chunks, chunks);
        }
        if (random() % 3 == 0) mixture.evaluate(random_uses(random, "eval/", UseKind::inference));
      }
    }
  }
}

// The second of two equal steps has the schedule of the first, and that is enough: the third moves the least
// that can be, nothing of it on demand.
TEST(Replanning, OptFollowsTheNewScheduleInTheNextStep) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Mixture mixture(PolicyKind::opt, 5 + random() % 12);
    for (uint32_t change = 0; change < 3; ++change) {
      const auto uses = there_and_back(random_uses(random, "", UseKind::forward));
      mixture.step(uses);
      mixture.step(uses);
      uint64_t demanded = 0, bytes = 0;
      constexpr uint32_t kRepeated = 3;  // what is frozen serves several steps
      for (uint32_t i = 0; i < kRepeated; ++i) {
        const OffloadCounters moved = mixture.step(uses);
        demanded += moved.demand_fetch_count;
        bytes += moved.h2d_bytes;
      }
      EXPECT_EQ(demanded, 0u);
      EXPECT_LE(bytes,
                kRepeated * mixture.offloader().report().traffic_bound().h2d_bytes + 3 * kTileElements * 2);
    }
  }
}

}  // namespace
}  // namespace terrace::replanning_test
