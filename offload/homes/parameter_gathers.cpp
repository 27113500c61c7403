#include <terrace/offload/homes/parameter_gathers.h>

namespace terrace {

ParameterGathers::ParameterGathers(const RunContext& run, DeviceCache& cache)
    : run_(run), cache_(cache), ranks_(*run.options.hooks.communicator), slots_(cache.slot_count()) {
  if (run.options.dry) return;  // one part stands for all
  for (SlotGather& slot : slots_) {
    slot.to.resize(ranks_.size());
    slot.from.resize(ranks_.size());
  }
}

// A share is as long as it is: no rank sends what follows the end of a chunk.
void ParameterGathers::gather(ChunkId chunk, CacheSlot& slot) {
  SlotGather& parts = slots_[cache_.number_of(slot)];
  std::byte* const memory = cache_.begin_filling(slot);
  const uint64_t element_bytes = bytes_of(run_.space.section_of(chunk).type);
  slot.in.begin({"parameters", index_of(chunk), CopyName::Link::ranks});
  const uint64_t own = run_.shards.param_bytes(chunk);
  const uint64_t in_bytes = run_.space.param_bytes(chunk) - own, out_bytes = own * (ranks_.size() - 1);
  in_bytes_ += in_bytes;
  out_bytes_ += out_bytes;
  const CommNote note{"parameters", index_of(chunk), ++count_};
  if (run_.options.dry) {
    const CommPart out{memory, out_bytes};
    CommPart in{memory, in_bytes};
    return ranks_.exchange(Lane::gather, {&out, 1}, {&in, 1}, &parts.share, slot.in, note);
  }
  const auto part_of = [&](uint32_t rank) {
    const ShardTiles tiles = run_.shards.of(chunk, rank);
    return CommPart{memory + tiles.first_element() * element_bytes, tiles.elements() * element_bytes};
  };
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    parts.to[rank] = part_of(ranks_.rank());
    parts.from[rank] = part_of(rank);
  }
  ranks_.exchange(Lane::gather, parts.to, parts.from, &parts.share, slot.in, note);
}

}  // namespace terrace
