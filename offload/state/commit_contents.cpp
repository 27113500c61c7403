// The part of Commits that moves the state: out of a commit that is taken up, and into the tier where only
// the device has it.
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include <terrace/offload/commits/committer.h>
#include <terrace/offload/state/commits.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/step_boundary.h>

namespace terrace {

// The commits that were found are this run's from now on.
void Commits::adopt_found() {
  const CommitStores stores = this->stores();
  const auto slots_of = [&](const TierManifest& manifest, auto snapshot_of) {
    CommitSlots slots;
    slots.commit = manifest.commit;
    slots.info = manifest.info;
    slots.tensor_steps = manifest.tensor_steps;
    for (const CommitPart part : kCommitParts) {
      if (stores[part] != nullptr) slots[part] = snapshot_of(*stores[part]);
    }
    return slots;
  };
  const std::vector<TierManifest> found = blocks_.tiers().take_found_commits();
  std::vector<CommitSlots> retained;
  for (size_t e = 0; e + 1 < found.size(); ++e)
    retained.push_back(slots_of(found[e], [e](BlockStore& store) { return store.take_retained(e); }));
  const TierManifest& last = found.back();
  committer_->take_up(slots_of(last, [](BlockStore& store) { return store.snapshot(); }),
                      blocks_.tiers().tier()->commits().back().retained, std::move(retained));
}

// Reads every block once and in order. Each is verified, copied if its chunk is resident, and converted to
// parameters if it holds whole masters.
void Commits::load_last() {
  const RunContext& run = blocks_.run();
  run.watch.set_activity("going on from a commit");
  StateCustody& custody = boundary_.custody();
  for (const StatePart part : {StatePart::trained, StatePart::frozen}) custody.begin_loading(part);
  // Ranks that have nothing of a chunk publish it too, and all in one order: its shares come together then.
  uint32_t next = 0;
  const auto publish_empty_before = [&](uint32_t end) {
    for (; next < end; ++next) {
      const ChunkId chunk{next};
      if (run.is_trained(chunk) && !run.is_compact() && run.shards.own(chunk).tile_count == 0)
        blocks_.publish(chunk, blocks_.memory_for(chunk));
    }
  };
  blocks_.read_records([](ChunkId) { return true; },
                       [&](const BlockTransfer& read) {
                         publish_empty_before(index_of(read.chunk()));
                         take_records(read);
                       });
  publish_empty_before(run.space.chunk_count());
  const CommitStores stores = this->stores();
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!run.is_trained(chunk)) {
      load_parameters(chunk, *stores[CommitPart::frozen]);
    } else if (run.is_compact()) {
      load_parameters(chunk, *stores[CommitPart::parameters]);
      blocks_.homes().params.publication().note_copied_to_tier(chunk);
    }
  }
  for (const StatePart part : {StatePart::frozen, StatePart::trained}) custody.end_loading(part);
  add_cached(false);
}

void Commits::take_records(const BlockTransfer& read) {
  const ChunkId chunk = read.chunk();
  if (std::byte* resident = blocks_.homes().records.resident(chunk))
    std::memcpy(resident + read.block() * blocks_.run().plan.ring_slot_bytes, read.bytes().data(),
                read.bytes().size());
  if (blocks_.run().is_compact()) return;
  std::byte* const parameters = blocks_.memory_for(chunk);
  blocks_.derive_parameters(chunk, read.bytes(),
                            parameters + blocks_.first_tile_of(read) * blocks_.parameter_tile_bytes(chunk));
  if (read.block() + 1 == blocks_.tiers().records()->block_count(chunk)) blocks_.publish(chunk, parameters);
}

// Parameters that live in the tier and are not resident stay there, and are verified whenever they are
// fetched.
void Commits::load_parameters(ChunkId chunk, BlockStore& store) {
  if (!blocks_.homes().params.is_in_memory(chunk)) return blocks_.note_loaded(chunk);
  std::byte* const parameters = blocks_.memory_for(chunk);
  blocks_.read_blocks(store, chunk, parameters, 0, store.chunk_bytes(chunk));
  blocks_.publish(chunk, parameters);
}

// Parameters that live on the device are copied to the host and into the tier before the commit takes its
// snapshot, because the next step writes over them and the commit could not read them beside it.
void Commits::copy_parameters() {
  const RunContext& run = blocks_.run();
  BlockStore& store = *blocks_.tiers().copied();
  io::Engine& engine = *blocks_.tiers().engine();
  Publication& made = blocks_.homes().params.publication();
  std::array<BlockTransfer, 4> writes;
  size_t turn = 0;
  const auto start_write = [&](ChunkId chunk, uint32_t block, std::span<const std::byte> bytes) {
    BlockTransfer& write = writes[turn++ % writes.size()];
    write.finish(run.watch);
    while (!committer_->begin_write(CommitPart::parameters, engine, chunk, block, bytes, write.write()))
      wait_watched(engine, run.watch,
                   {"room in the tier", "host -> nvme", TimeCause::write, chunk, nullptr, {}});
    const uint64_t tag =
        transfer_tag(run.options.hooks.step_events, TransferRole::param, TransferReason::commit, chunk);
    write.start_write(store, TransferPort(engine), {.what = "parameters", .tag = tag});
    copied_bytes_ += bytes.size();
  };
  try {
    for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
      const ChunkId chunk{c};
      if (!run.is_trained(chunk) || !made.is_newer_on_device(chunk)) continue;
      const std::byte* const parameters = blocks_.parameters_of(chunk);
      for (uint32_t b = 0; b < store.block_count(chunk); ++b)
        start_write(chunk, b, {parameters + b * store.block_bytes(chunk, 0), store.block_bytes(chunk, b)});
      // The next chunk may be copied to the same memory, so the writes end first.
      for (BlockTransfer& write : writes) write.finish(run.watch);
      made.note_copied_to_tier(chunk);
    }
  } catch (...) {
    for (BlockTransfer& write : writes) write.settle(run.watch);
    throw;
  }
}

}  // namespace terrace
