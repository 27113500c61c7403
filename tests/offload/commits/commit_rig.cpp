#include "offload/commits/commit_rig.h"

#include <gtest/gtest.h>

#include "support/patience.h"

namespace terrace {

uint64_t CommitRig::cached_record_bytes() const {
  const MemoryPlan& plan = offloader->plan();
  uint64_t bytes = 0;
  uint32_t t = 0;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (!space.section_of(ChunkId{c}).trainable) continue;
    const uint64_t before = uint64_t{t} * plan.host_record_slots / plan.record_chunks;
    ++t;
    if (uint64_t{t} * plan.host_record_slots / plan.record_chunks != before)
      bytes += space.chunk(ChunkId{c}).tile_count() * plan.record_layout.tile_bytes();
  }
  return bytes;
}

uint64_t CommitRig::trainable_elements() const {
  uint64_t elements = 0;
  for (const Section& section : space.sections()) elements += section.trainable ? section.elements : 0;
  return elements;
}

std::vector<std::vector<std::byte>> states_without_commits(CommitCase c, uint64_t steps) {
  const ScratchFolder folder;
  c.durable = false;
  c.start = TierStart::fresh;
  c.decorate = nullptr;
  c.events = nullptr;
  c.engine = io::EngineKind::threads;
  CommitRig rig(c, folder.path());
  std::vector<std::vector<std::byte>> states = {rig.state()};
  for (uint64_t step = 1; step <= steps; ++step) {
    rig.step(step);
    states.push_back(rig.state());
  }
  return states;
}

std::string step_info(uint64_t step) {
  return "step " + std::to_string(step);
}
uint64_t step_of(const std::string& info) {
  return std::stoull(info.substr(std::string("step ").size()));
}

void CommitGate::operator()() {
  testing::comes_true([&] {
    if (open_) return true;
    const Offloader* const offloader = offloader_;
    if (offloader == nullptr) return false;
    const std::optional<uint64_t> wait = offloader->report().watch().current();
    const std::string text = wait ? offloader->report().watch().describe(*wait).value_or("") : "";
    const bool is_seen = text.find("commit") != std::string::npos;
    if (is_seen) ++waits_seen_;
    return is_seen;
  });
}

void train_past_commit(CommitRig& rig, CommitGate& gate) {
  rig.step(1);
  rig.offloader->commits().begin(step_info(1));
  rig.offloader->commits().finish();
  gate.watch(rig.offloader.get());
  gate.open(false);
  rig.step(2);
  rig.offloader->commits().begin(step_info(2));
  rig.step(3);
  rig.step(4);
  gate.open(true);
  EXPECT_EQ(rig.offloader->commits().finish(), 2u);
}

void expect_commit(CommitCase c, const std::filesystem::path& folder, uint64_t step,
                   const std::vector<std::vector<std::byte>>& states) {
  c.start = TierStart::resume;
  c.decorate = nullptr;
  CommitRig resumed(c, folder);
  EXPECT_EQ(resumed.offloader->commits().taken_up_info(), step_info(step));
  EXPECT_EQ(resumed.state(), states[step]);
}

WrapEngine decorate_commits(const CommitCase& c, WrapEngine wrap) {
  CommitCase planned = c;
  planned.dry = true;
  planned.start = TierStart::fresh;
  const ScratchFolder folder;
  const bool spills = CommitRig(planned, folder.path()).offloader->plan().spilled_chunks > 0;
  // The engine of parameters and gradients is made before that of the commits.
  const uint32_t commits = c.parameters == Placement::nvme || spills ? 2 : 1;
  return [commits, made = std::make_shared<uint32_t>(0),
          wrap = std::move(wrap)](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    return (*made)++ == commits ? wrap(std::move(engine)) : std::move(engine);
  };
}

}  // namespace terrace
