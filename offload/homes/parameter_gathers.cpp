#include <terrace/offload/homes/parameter_gathers.h>

#include <terrace/offload/plan/host_slots.h>

namespace terrace {
namespace {

constexpr const char* kGathered = "parameters";

}  // namespace

ParameterGathers::ParameterGathers(const RunContext& run, HostArena& arena, DeviceCache& cache)
    : run_(run),
      cache_(cache),
      ranks_(*run.options.hooks.communicator),
      comparison_(run),
      slots_(cache.slot_count()),
      stage_count_(run.plan.gather_slots),
      stages_(std::make_unique<Stage[]>(stage_count_)) {
  for (SlotGather& slot : slots_) {
    if (run.options.dry) break;  // one part stands for all
    slot.to.resize(ranks_.size());
    slot.from.resize(ranks_.size());
  }
  const std::vector<std::byte*> memory =
      carve_slots(arena, run.plan.slot_bytes, stage_count_, "parameters of other ranks");
  for (uint32_t s = 0; s < stage_count_; ++s) stages_[s].memory = memory[s];
}

ParameterGathers::~ParameterGathers() {
  for (uint32_t s = 0; s < stage_count_; ++s) {
    stages_[s].left.wait_done();
    stages_[s].exchanged.wait_done();
  }
}

void ParameterGathers::gather(ChunkId chunk, CacheSlot& slot, const HostShare& own, TransferReason reason) {
  comparison_.note_gather(chunk);
  const uint64_t own_bytes = run_.shards.param_bytes(chunk);
  in_bytes_ += run_.space.param_bytes(chunk) - own_bytes;
  out_bytes_ += own_bytes * (ranks_.size() - 1);
  if (goes_by_copies()) return gather_by_copies(chunk, slot, own, reason);
  SlotGather& parts = slots_[cache_.number_of(slot)];
  std::byte* const memory = cache_.begin_filling(slot);
  slot.in.begin({kGathered, index_of(chunk), CopyName::Link::gather});
  exchange(next_note(chunk, reason), parts, memory + run_.shards.first_param_byte(chunk), memory,
           &parts.share, slot.in);
}

CommNote ParameterGathers::next_note(ChunkId chunk, TransferReason reason) {
  return {kGathered, index_of(chunk), ++count_, gathered_note(run_.watch.events(), reason, index_of(chunk))};
}

// A share is as long as it is: no rank sends what follows the end of a chunk.
void ParameterGathers::exchange(const CommNote& note, SlotGather& parts, std::byte* own, std::byte* whole,
                                const Event* after, Event& done) {
  const ChunkId chunk{note.chunk};
  const uint64_t element_bytes = bytes_of(run_.space.section_of(chunk).type);
  if (run_.options.dry) {  // one part stands for all
    const uint64_t own_bytes = run_.shards.param_bytes(chunk);
    const CommPart out{own, own_bytes * (ranks_.size() - 1)};
    CommPart in{whole, run_.space.param_bytes(chunk) - own_bytes};
    return ranks_.exchange(Lane::gather, {&out, 1}, {&in, 1}, after, done, note);
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const ShardTiles tiles = run_.shards.of(chunk, rank);
    parts.to[rank] = {own, run_.shards.param_bytes(chunk)};
    parts.from[rank] = {whole + tiles.first_element() * element_bytes, tiles.elements() * element_bytes};
  }
  ranks_.exchange(Lane::gather, parts.to, parts.from, after, done, note);
}

// The target may hold another chunk by now; then a later gather, which was asked for before, is waited for
// as well.
ParameterGathers::Stage& ParameterGathers::take_stage(ChunkId chunk, CacheSlot& slot, TransferReason reason) {
  Stage& stage = stages_[next_stage_];
  next_stage_ = (next_stage_ + 1) % stage_count_;
  if (stage.target != nullptr) stage.target->in.wait_done(run_.watch);
  stage.target = &slot;
  stage.fetches = reason == TransferReason::step ? index_of(chunk) : kNone;
  return stage;
}

void ParameterGathers::finished(ChunkId chunk) {
  for (uint32_t s = 0; s < stage_count_; ++s) {
    if (stages_[s].fetches == index_of(chunk)) stages_[s].fetches = kNone;
  }
}

// Copies to the device keep their order, so the first of the two waits for the other ranks, and the second
// for what else has to be over before the slot is whole.
void ParameterGathers::gather_by_copies(ChunkId chunk, CacheSlot& slot, const HostShare& own,
                                        TransferReason reason) {
  Stage& stage = take_stage(chunk, slot, reason);
  SlotGather& parts = slots_[cache_.number_of(slot)];
  const uint64_t first = run_.shards.first_param_byte(chunk), bytes = run_.shards.param_bytes(chunk);
  const uint64_t end = first + bytes, all = run_.space.param_bytes(chunk);
  StepEvents* const events = run_.watch.events();
  const bool is_on_host = own.memory != nullptr;
  // Nobody writes to what is sent.
  std::byte* const mine = is_on_host ? const_cast<std::byte*>(own.memory) : stage.memory + first;
  if (!is_on_host) {
    stage.left.begin(to_host_copy(kGathered, chunk));
    run_.device.copy_to_host(mine, slot.id, first, bytes, &parts.share, stage.left,
                             from_device_note(events, TransferRole::param, reason, index_of(chunk)));
    d2h_bytes_ += bytes;
  }
  stage.exchanged.begin({kGathered, index_of(chunk), CopyName::Link::gather});
  slot.in.begin({kGathered, index_of(chunk), CopyName::Link::gather}, 2);
  cache_.begin_copying_in(slot);
  exchange(next_note(chunk, reason), parts, mine, stage.memory, is_on_host ? own.ready : &stage.left,
           stage.exchanged);
  const CopyNote note = to_device_note(events, TransferRole::param, reason, index_of(chunk));
  run_.device.copy_to_device(slot.id, 0, stage.memory, first, &stage.exchanged, slot.in, note);
  run_.device.copy_to_device(slot.id, end, stage.memory + end, all - end,
                             is_on_host ? &parts.share : &stage.left, slot.in, note);
  h2d_bytes_ += all - bytes;
}

}  // namespace terrace
