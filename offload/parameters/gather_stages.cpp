#include <terrace/offload/parameters/gather_stages.h>

#include <vector>

#include <terrace/offload/plan/host_slots.h>

namespace terrace {

GatherStages::GatherStages(const RunContext& run, HostArena& arena)
    : run_(run), count_(run.plan.gather_slots), stages_(std::make_unique<Stage[]>(count_)) {
  const std::vector<std::byte*> memory =
      carve_slots(arena, run.plan.slot_bytes, count_, "parameters of other ranks");
  for (uint32_t s = 0; s < count_; ++s) stages_[s].memory = memory[s];
}

// The target may hold another chunk by now; then a later gather, which was asked for before, is waited for
// as well.
GatherStages::Stage& GatherStages::take(ChunkId chunk, CacheSlot& slot, TransferReason reason) {
  Stage& stage = stages_[next_];
  next_ = (next_ + 1) % count_;
  if (stage.target != nullptr) stage.target->in.wait_done(run_.watch);
  stage.target = &slot;
  stage.fetches = reason == TransferReason::step ? index_of(chunk) : kNone;
  return stage;
}

void GatherStages::finished(ChunkId chunk) {
  for (uint32_t s = 0; s < count_; ++s) {
    if (stages_[s].fetches == index_of(chunk)) stages_[s].fetches = kNone;
  }
}

void GatherStages::wait() {
  for (uint32_t s = 0; s < count_; ++s) {
    stages_[s].left.wait_done();
    stages_[s].arrived.wait_done();
  }
}

}  // namespace terrace
