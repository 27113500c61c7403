#include <terrace/offload/parameters/parameter_gathers.h>

#include <terrace/offload/plan/host_slots.h>

namespace terrace {
namespace {

constexpr const char* kGathered = "parameters";

}  // namespace

ParameterGathers::ParameterGathers(const RunContext& run, HostArena& arena, DeviceCache& cache)
    : run_(run),
      cache_(cache),
      ranks_(*run.options.hooks.communicator),
      hosts_(rounds_of(run.options).layout()),
      sub_group_(hosts_.across_sub_group_of(ranks_.rank(), run.options.sub_group_hosts)),
      comparison_(run),
      slots_(cache.slot_count()),
      kept_(run.plan.kept_gathers),
      stages_(run, arena),
      codes_(std::make_unique<Codes[]>(run.plan.code_slots)),
      quantized_(run.plan.code_slots > 0
                     ? std::make_unique<QuantizedCopies>(run.instruction_set, run.options.parameter_bits,
                                                         run.options.dry)
                     : nullptr) {
  for (SlotGather& slot : slots_) {
    if (run.options.dry) break;  // one part stands for all
    slot.to.assign(hosts_.hosts > 1 ? hosts_.hosts + 1 : 1, std::vector<CommPart>(ranks_.size()));
    slot.from = slot.to;
  }
  const std::vector<std::byte*> kept =
      carve_slots(arena, run.plan.kept_gather_bytes, run.plan.kept_gathers, "parameters of other hosts");
  for (size_t c = 0; c < kept.size(); ++c) kept_[c].memory = kept[c];
  const std::vector<std::byte*> codes =
      carve_slots(arena, run.plan.code_slot_bytes, run.plan.code_slots, "parameters between hosts");
  for (size_t c = 0; c < codes.size(); ++c) codes_[c].memory = codes[c];
}

ParameterGathers::~ParameterGathers() {
  cache_.drain();
  stages_.wait();
  for (const SlotGather& slot : slots_) slot.crossed.wait_done();
}

void ParameterGathers::gather(ChunkId chunk, CacheSlot& slot, const HostShare& own, TransferReason reason) {
  comparison_.note_gather(chunk);
  if (goes_by_copies()) return gather_by_copies(chunk, slot, own, reason);
  SlotGather& parts = slots_[cache_.number_of(slot)];
  Kept& kept = index_of(chunk) < kept_.size() ? kept_[index_of(chunk)] : not_kept_;
  std::byte* const memory = cache_.begin_filling(slot);
  slot.in.begin({kGathered, index_of(chunk), CopyName::Link::gather}, hosts_.hosts + kept_shares(kept));
  const Gather gather{chunk,  reason, parts,       memory + run_.shards.first_param_byte(chunk),
                      memory, kept,   &parts.share};
  count(gather);
  bring_together(gather, slot.in);
  copy_kept(gather, slot, slot.in);
  kept.is_current = kept.memory != nullptr;
}

void ParameterGathers::count(const Gather& gather) {
  moved_ +=
      gather_bytes(run_.shards, hosts_, gather.chunk, run_.options.parameter_bits, crossing_ranks(gather));
}

std::byte* ParameterGathers::crossing(const Gather& gather, uint32_t host) const {
  const uint32_t mine = ranks_.rank();
  if (keeps(gather.kept, host)) {
    const uint32_t place = host < hosts_.host_of(sub_group_.first) ? host : host - sub_group_.count;
    return gather.kept.memory + place * run_.plan.share_bytes;
  }
  const ShardTiles tiles = run_.shards.of(gather.chunk, hosts_.rank(host, hosts_.place_on_host(mine)));
  return gather.whole + tiles.first_element() * bytes_of(run_.space.section_of(gather.chunk).type);
}

// The shares of this host go to its ranks at once, and those of other hosts when they are here.
void ParameterGathers::bring_together(const Gather& gather, Event& done) {
  const uint32_t rank = ranks_.rank(), here = hosts_.host_of(rank);
  const DeviceCopy& crossed = gather.slot.crossed;
  if (crossing_ranks(gather).count > 1) cross(gather);
  for (uint32_t i = 0; i < hosts_.hosts; ++i) {
    const uint32_t host = (here + i) % hosts_.hosts;
    const bool is_there = host == here || (gather.kept.is_current && keeps(gather.kept, host));
    exchange(gather, hosts_.on_host_of(rank), host, is_there ? gather.after : &crossed, done);
  }
}

void ParameterGathers::cross(const Gather& gather) {
  if (bits_of(run_.space.section_of(gather.chunk), run_.options.parameter_bits) > 0)
    return cross_as_codes(gather);
  DeviceCopy& crossed = gather.slot.crossed;
  crossed.begin({kGathered, index_of(gather.chunk), CopyName::Link::gather});
  exchange(gather, crossing_ranks(gather), std::nullopt, gather.after, crossed);
}

void ParameterGathers::cross_as_codes(const Gather& gather) {
  const ChunkId chunk = gather.chunk;
  const CopyName name{kGathered, index_of(chunk), CopyName::Link::gather};
  const DataType type = run_.space.section_of(chunk).type;
  const uint32_t mine = ranks_.rank(), here = hosts_.host_of(mine);
  Codes& codes = codes_[next_codes_];
  next_codes_ = (next_codes_ + 1) % run_.plan.code_slots;
  if (codes.crossed != nullptr) codes.crossed->wait_done(run_.watch);
  codes.crossed = &gather.slot.crossed;
  codes.made.begin(name);
  codes.arrived.begin(name);
  const RankGroup group = crossing_ranks(gather);
  codes.crossed->begin(name, group.count - 1);
  quantized_->to_codes(gather.own, type, run_.shards.own(chunk).elements(), code_memory(codes, here),
                       gather.after, codes.made);
  exchange(gather, group, std::nullopt, &codes.made, codes.arrived, &codes);
  for (uint32_t i = 0; i < group.count; ++i) {
    const uint32_t owner = group.rank(i), host = hosts_.host_of(owner);
    if (owner == mine) continue;
    const ShardTiles tiles = run_.shards.of(chunk, owner);
    quantized_->from_codes(code_memory(codes, host), type, tiles.elements(), crossing(gather, host),
                           &codes.arrived, *codes.crossed);
  }
}

void ParameterGathers::copy_kept(const Gather& gather, const CacheSlot& slot, Event& done) {
  if (gather.kept.memory == nullptr) return;
  const uint32_t mine = ranks_.rank(), here = hosts_.host_of(mine);
  const CopyNote note =
      to_device_note(run_.watch.events(), TransferRole::param, gather.reason, index_of(gather.chunk));
  for (uint32_t i = 1; i < hosts_.hosts; ++i) {
    const uint32_t host = (here + i) % hosts_.hosts;
    if (!keeps(gather.kept, host)) continue;
    const ShardTiles tiles = run_.shards.of(gather.chunk, hosts_.rank(host, hosts_.place_on_host(mine)));
    const uint64_t element_bytes = bytes_of(run_.space.section_of(gather.chunk).type);
    run_.device.copy_to_device(slot.id, tiles.first_element() * element_bytes, crossing(gather, host),
                               tiles.elements() * element_bytes,
                               gather.kept.is_current ? gather.after : &gather.slot.crossed, done, note);
    h2d_bytes_ += tiles.elements() * element_bytes;
  }
}

// A share is as long as it is: no rank sends what follows the end of a chunk.
void ParameterGathers::exchange(const Gather& gather, const RankGroup& group, std::optional<uint32_t> host,
                                const Event* after, Event& done, const Codes* codes) {
  const ChunkId chunk = gather.chunk;
  const uint64_t element_bytes = bytes_of(run_.space.section_of(chunk).type);
  const uint32_t mine = ranks_.rank();
  // What a rank of the group sends to the others of it.
  const auto share_of = [&](uint32_t rank) -> CommPart {
    const uint32_t owner = host ? hosts_.rank(*host, hosts_.place_on_host(rank)) : rank;
    const ShardTiles tiles = run_.shards.of(chunk, owner);
    if (codes != nullptr)
      return {code_memory(*codes, hosts_.host_of(owner)),
              quantized_bytes(tiles.elements(), run_.options.parameter_bits)};
    const bool crosses = hosts_.place_on_host(owner) == hosts_.place_on_host(mine);
    return {owner == mine ? gather.own
            : crosses     ? crossing(gather, hosts_.host_of(owner))
                          : gather.whole + tiles.first_element() * element_bytes,
            tiles.elements() * element_bytes};
  };
  const Lane lane = host ? Lane::gather : Lane::gather_between_hosts;
  const CommNote note{kGathered, index_of(chunk), ++count_,
                      gathered_note(run_.watch.events(), gather.reason, index_of(chunk))};
  const CommPart sent = share_of(mine);
  if (run_.options.dry) {  // one part stands for all
    CommPart in{gather.whole, 0};
    for (uint32_t i = 0; i < group.count; ++i) in.bytes += share_of(group.rank(i)).bytes;
    in.bytes -= sent.bytes;
    const CommPart out{sent.memory, sent.bytes * (group.count - 1)};
    return ranks_.exchange_within(group, lane, {&out, 1}, {&in, 1}, after, done, note);
  }
  const size_t place = host.value_or(hosts_.hosts);
  for (uint32_t i = 0; i < group.count; ++i) {
    gather.slot.to[place][group.rank(i)] = sent;
    gather.slot.from[place][group.rank(i)] = share_of(group.rank(i));
  }
  ranks_.exchange_within(group, lane, gather.slot.to[place], gather.slot.from[place], after, done, note);
}

void ParameterGathers::gather_by_copies(ChunkId chunk, CacheSlot& slot, const HostShare& own,
                                        TransferReason reason) {
  GatherStages::Stage& stage = stages_.take(chunk, slot, reason);
  SlotGather& parts = slots_[cache_.number_of(slot)];
  Kept& kept = index_of(chunk) < kept_.size() ? kept_[index_of(chunk)] : not_kept_;
  const uint64_t first = run_.shards.first_param_byte(chunk), bytes = run_.shards.param_bytes(chunk);
  const bool is_on_host = own.memory != nullptr;
  // Nobody writes to what is sent.
  std::byte* const mine = is_on_host ? const_cast<std::byte*>(own.memory) : stage.memory + first;
  if (!is_on_host) {
    stage.left.begin(to_host_copy(kGathered, chunk));
    run_.device.copy_to_host(
        mine, slot.id, first, bytes, &parts.share, stage.left,
        from_device_note(run_.watch.events(), TransferRole::param, reason, index_of(chunk)));
    d2h_bytes_ += bytes;
  }
  const Gather gather{chunk, reason, parts, mine, stage.memory, kept, is_on_host ? own.ready : &stage.left};
  count(gather);
  stage.arrived.begin({kGathered, index_of(chunk), CopyName::Link::gather}, hosts_.hosts);
  slot.in.begin({kGathered, index_of(chunk), CopyName::Link::gather}, 2 + 2 * kept_shares(kept));
  cache_.begin_copying_in(slot);
  bring_together(gather, stage.arrived);
  copy_from_stage(gather, stage, slot, is_on_host ? parts.share : stage.left);
  copy_kept(gather, slot, slot.in);
  kept.is_current = kept.memory != nullptr;
}

// What lies between the own share and those that are kept. Copies to the device keep their order, so the
// first of them waits for the other ranks, and the others for what else has to be over before the slot is
// whole.
void ParameterGathers::copy_from_stage(const Gather& gather, const GatherStages::Stage& stage,
                                       CacheSlot& slot, const Event& share) {
  const ChunkId chunk = gather.chunk;
  const uint64_t element_bytes = bytes_of(run_.space.section_of(chunk).type);
  const CopyNote note =
      to_device_note(run_.watch.events(), TransferRole::param, gather.reason, index_of(chunk));
  const uint32_t here = hosts_.host_of(ranks_.rank()), place = hosts_.place_on_host(ranks_.rank());
  const Event* after = &stage.arrived;
  uint64_t at = 0;
  const auto copy_to = [&](uint64_t end) {
    run_.device.copy_to_device(slot.id, at, stage.memory + at, end - at, after, slot.in, note);
    h2d_bytes_ += end - at;
    after = &share;
  };
  for (uint32_t host = 0; host < hosts_.hosts; ++host) {
    if (host != here && !keeps(gather.kept, host)) continue;
    const ShardTiles tiles = run_.shards.of(chunk, hosts_.rank(host, place));
    copy_to(tiles.first_element() * element_bytes);
    at = (tiles.first_element() + tiles.elements()) * element_bytes;
  }
  copy_to(run_.space.param_bytes(chunk));
}

}  // namespace terrace
