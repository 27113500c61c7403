// A warm step allocates nothing, on no thread: neither the one that trains nor one that updates, reads,
// copies or writes beside it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "offload/commits/commit_rig.h"
#include "support/allocation_counter.h"

namespace terrace::update_allocation_test {
namespace {

struct WarmCase {
  UpdateMode mode;
  Placement parameters;
  bool compact;
  bool spills;
  double processor_share = 1;
};

std::string case_name(const ::testing::TestParamInfo<WarmCase>& info) {
  const WarmCase& c = info.param;
  return fmt::format("{}_{}_{}_{}{}", name_of(c.mode), name_of(c.parameters), c.compact ? "compact" : "plain",
                     c.spills ? "spilled" : "held", c.processor_share < 1 ? "_divided" : "");
}

std::vector<WarmCase> cases() {
  std::vector<WarmCase> list;
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
      for (const bool compact : {false, true}) {
        for (const bool spills : {false, true}) list.push_back({mode, parameters, compact, spills});
      }
    }
  }
  list.push_back({UpdateMode::after_backward, Placement::cpu, false, false, 0.5});
  list.push_back({UpdateMode::during_backward, Placement::nvme, true, true, 0.5});
  return list;
}

// What toy::run_micro_batch() leases, with texts and lists that are made beforehand. Gradients are zero.
class Leases {
 public:
  Leases() {
    const std::vector<toy::Use> uses = toy::forward_uses(false);
    forward_count_ = uses.size();
    for (const char* pass : {"/forward", "/backward"}) {
      for (const toy::Use& use : uses) {
        leases_.push_back({"mb0/" + use.name + pass, {}});
        for (const uint32_t t : use.tensors) leases_.back().second.push_back(TensorId{t});
      }
    }
    std::reverse(leases_.begin() + static_cast<ptrdiff_t>(forward_count_), leases_.end());
  }
  void take(Offloader& offloader) const {
    for (size_t l = 0; l < leases_.size(); ++l) {
      const Lease lease(offloader, leases_[l].first, leases_[l].second,
                        l < forward_count_ ? UseKind::forward : UseKind::backward);
    }
  }

 private:
  std::vector<std::pair<std::string, std::vector<TensorId>>> leases_;
  size_t forward_count_ = 0;
};

class WarmStep : public ::testing::TestWithParam<WarmCase> {};

TEST_P(WarmStep, AllocatesNothingOnAnyThread) {
  const WarmCase& c = GetParam();
  CommitCase options{.parameters = c.parameters, .cached_quarters = c.spills ? 0u : 2u, .threads = 1};
  options.durable = false;
  options.layout = c.compact ? kCompact : RecordLayout{};
  options.mode = c.mode;
  options.processor_share = c.processor_share;
  options.holds_gradients = !c.spills;
  // Where parameters have host slots of their own, plain gradients take these over and never spill.
  const ScratchFolder folder;
  CommitRig rig(options, folder.path());
  const bool takes_over = c.parameters == Placement::cpu && !c.compact;
  ASSERT_EQ(rig.offloader->plan().spilled_chunks > 0, c.spills && !takes_over);
  const Leases leases;
  const std::vector<OptimizerSettings> groups = toy::groups();
  for (uint64_t step = 1; step <= 3; ++step) rig.step(step);
  rig.offloader->finish_update();
  const uint64_t before = testing::allocations_of_all_threads();
  for (uint64_t step = 4; step <= 5; ++step) {
    const UpdateSettings settings = {groups, step, 0, 1};
    rig.offloader->begin_step();
    rig.offloader->announce_update(settings);
    leases.take(*rig.offloader);
    rig.offloader->end_micro_batch();
    rig.offloader->update(settings);
  }
  rig.offloader->finish_update();
  EXPECT_EQ(testing::allocations_of_all_threads() - before, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, WarmStep, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace terrace::update_allocation_test
