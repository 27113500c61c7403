// What the step thread tells of steps and uses to whoever records them. Nothing here decides anything.
#include <utility>

#include <terrace/offload/offloader_parts.h>

namespace terrace {

void Offloader::Parts::describe_to_recorder() {
  TraceFacts facts;
  facts.chunk_count = space.chunk_count();
  facts.device_slot_count = plan.device_slots;
  facts.device_slot_bytes = plan.slot_bytes;
  facts.device_other_bytes = plan.work_bytes + plan.device_record_slots * plan.record_slot_bytes +
                             plan.device_accumulator_slots * plan.accumulator_slot_bytes +
                             plan.device_activation_bytes() + plan.device_lanes_bytes();
  facts.device_budget_bytes = options.device_budget_bytes;
  facts.host_budget_bytes = options.host_budget_bytes;
  facts.ring_slot_count = plan.ring_slots;
  facts.ring_slot_bytes = plan.ring_slot_bytes;
  facts.trainable_chunk_count = plan.record_chunks;
  if (tiers.tier() != nullptr) {
    for (const TierPath& path : tiers.tier()->paths()) facts.nvme_paths.push_back(path.path.string());
  }
  options.step_events->set_facts(std::move(facts));
  const auto add = [this](const BlockStore* store, TransferRole role) {
    if (store == nullptr) return;
    for (const int descriptor : store->descriptors())
      options.step_events->add_file(descriptor, store->path_index_of(descriptor), role);
  };
  add(tiers.params(), TransferRole::param);
  add(tiers.frozen(), TransferRole::param);
  add(tiers.copied(), TransferRole::param);
  add(tiers.records(), TransferRole::state);
  add(tiers.gradients(), TransferRole::grad);
  add(tiers.activations(), TransferRole::activation);
}

void Offloader::Parts::record_step_begin() {
  cache.record_slots();
  record_budget();
  record_gauge(TraceGauge::ring_slots, ring.slot_count() - ring.free_count());
}

void Offloader::Parts::record_gauge(TraceGauge gauge, uint64_t amount) {
  TraceEvent event = options.step_events->begun(TraceKind::gauge);
  event.gauge = gauge;
  event.id = amount;
  options.step_events->record(event);
}

void Offloader::Parts::record_budget() {
  record_gauge(TraceGauge::host_bytes,
               arena.used_bytes() + record_arena.used_bytes() - records->given_back_bytes());
  record_gauge(TraceGauge::kept_records, records->kept_count());
}

// The operation computes from now on. Whatever was fetched for it has served its purpose.
void Offloader::Parts::record_use_begin() {
  StepEvents& events = *options.step_events;
  recorded = events.begun(TraceKind::use);
  recorded->name = events.number_of(operation);
  recorded->use = kind;
  recorded->micro_batch = static_cast<uint16_t>(order.micro_batch());
  recorded->counts = chunks_found;
  for (const ChunkId chunk : chunks) {
    const std::optional<DeviceCache::Asked> asked = cache.take_asked(chunk);
    if (!asked) continue;
    TraceEvent fetch = *recorded;
    fetch.kind = TraceKind::fetch;
    fetch.begin_ns = asked->at_ns;
    fetch.chunk = index_of(chunk);
    fetch.id = asked->on_demand ? 0 : home->copy_number(chunk);
    events.record(fetch);
  }
}

void Offloader::Parts::record_use_end() {
  options.step_events->record_until_now(*std::exchange(recorded, std::nullopt));
}

}  // namespace terrace
