#include <terrace/offload/step/step_recorder.h>

#include <utility>

namespace terrace {

StepRecorder::StepRecorder(const RunContext& run, const StateHomes& homes, DeviceCache& cache,
                           const HostMemory& host)
    : run_(run), homes_(homes), cache_(cache), host_(host) {}

void StepRecorder::describe(const TierStores& tiers) const {
  if (run_.options.hooks.step_events == nullptr) return;
  const MemoryPlan& plan = run_.plan;
  TraceFacts facts;
  facts.chunk_count = run_.space.chunk_count();
  facts.device_slot_count = plan.device_slots;
  facts.device_slot_bytes = plan.slot_bytes;
  facts.device_other_bytes = plan.work_bytes + plan.device_record_slots * plan.record_slot_bytes +
                             plan.device_accumulator_slots * plan.accumulator_slot_bytes +
                             plan.device_activation_bytes() + plan.device_share_bytes +
                             plan.device_exchange_bytes() + plan.device_lanes_bytes();
  facts.device_budget_bytes = run_.options.device_budget_bytes;
  facts.host_budget_bytes = run_.options.host_budget_bytes;
  facts.ring_slot_count = plan.ring_slots;
  facts.ring_slot_bytes = plan.ring_slot_bytes;
  facts.trainable_chunk_count = plan.record_chunks;
  if (tiers.tier() != nullptr) {
    for (const TierPath& path : tiers.tier()->paths()) facts.nvme_paths.push_back(path.path.string());
  }
  run_.options.hooks.step_events->set_facts(std::move(facts));
  const auto add = [this](const BlockStore* store, TransferRole role) {
    if (store == nullptr) return;
    for (const int descriptor : store->descriptors())
      run_.options.hooks.step_events->add_file(descriptor, store->path_index_of(descriptor), role);
  };
  add(tiers.params(), TransferRole::param);
  add(tiers.frozen(), TransferRole::param);
  add(tiers.copied(), TransferRole::param);
  add(tiers.records(), TransferRole::state);
  add(tiers.gradients(), TransferRole::grad);
  add(tiers.activations(), TransferRole::activation);
}

void StepRecorder::begin_step() const {
  if (!is_on()) return;
  cache_.record_slots();
  host_budget();
  gauge(TraceGauge::ring_slots, host_.ring.slot_count() - host_.ring.free_count());
}

void StepRecorder::gauge(TraceGauge gauge, uint64_t amount) const {
  TraceEvent event = run_.options.hooks.step_events->begun(TraceKind::gauge);
  event.gauge = gauge;
  event.id = amount;
  run_.options.hooks.step_events->record(event);
}

void StepRecorder::host_budget() const {
  if (!is_on()) return;
  gauge(TraceGauge::host_bytes,
        host_.arena.used_bytes() + host_.record_arena.used_bytes() - homes_.records.given_back_bytes());
  gauge(TraceGauge::kept_records, homes_.records.kept_count());
}

// The operation computes from now on, so the fetches for it have served their purpose.
void StepRecorder::begin_use(OpenUse& use, uint32_t micro_batch) {
  if (!is_on()) return;
  StepEvents& events = *run_.options.hooks.step_events;
  TraceEvent& event = use.event.emplace(events.begun(TraceKind::use));
  event.name = events.number_of(use.operation);
  event.use = use.kind;
  event.micro_batch = static_cast<uint16_t>(micro_batch);
  event.counts = use.chunks_found;
  for (const ChunkId chunk : use.chunks) {
    const std::optional<DeviceCache::Asked> asked = cache_.take_asked(chunk);
    if (!asked) continue;
    TraceEvent fetch = event;
    fetch.kind = TraceKind::fetch;
    fetch.begin_ns = asked->at_ns;
    fetch.chunk = index_of(chunk);
    fetch.id = asked->on_demand ? 0 : homes_.params.copy_number(chunk);
    events.record(fetch);
  }
}

void StepRecorder::end_use(OpenUse& use) {
  if (use.event) run_.options.hooks.step_events->record_until_now(*std::exchange(use.event, std::nullopt));
}

}  // namespace terrace
