// The commits of an Offloader: how they are made, and how a run goes on from that of an earlier one.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/commits/pinned_epoch_parts.h>
#include <terrace/offload/offloader_parts.h>

namespace terrace {
void Offloader::Parts::keep_epochs() {
  epoch_memory = arena.take(plan.epoch_slots * plan.epoch_slot_bytes, "reading commits");
  committer = std::make_unique<EpochCommitter>(epoch_stores(), space.chunk_count(), options.retained_epochs,
                                               tiers.make_engine("commits"), watch, log);
  records->commit_with(committer.get());
  if (has_parameters_in_epochs(plan)) home->commit_with(committer.get());
  if (!tiers.has_found_commits()) return;
  if (options.tier_start == TierStart::resume) {
    taken_up_info = tiers.last_found_commit().info;
    adopt_found_epochs();
    load_epoch();
  } else {
    earlier_epoch = tiers.last_found_commit().epoch;
    adopt_found_epochs();
  }
}

EpochStores Offloader::Parts::epoch_stores() const {
  EpochStores stores;
  stores.space = tiers.tier();
  stores.parts[index_of(EpochPart::records)] = tiers.records();
  stores.parts[index_of(EpochPart::frozen)] = tiers.frozen();
  if (has_parameters_in_epochs(plan))
    stores.parts[index_of(EpochPart::parameters)] =
        tiers.params() != nullptr ? tiers.params() : tiers.copied();
  stores.layout = plan.record_layout;
  return stores;
}

// They are this run's from now on.
void Offloader::Parts::adopt_found_epochs() {
  const EpochStores stores = epoch_stores();
  const auto slots_of = [&](const TierManifest& manifest, auto snapshot_of) {
    EpochSlots slots;
    slots.epoch = manifest.epoch;
    slots.info = manifest.info;
    for (const EpochPart part : kEpochParts) {
      if (stores[part] != nullptr) slots[part] = snapshot_of(*stores[part]);
    }
    return slots;
  };
  const std::vector<TierManifest> found = tiers.take_found_commits();
  std::vector<EpochSlots> retained;
  for (size_t e = 0; e + 1 < found.size(); ++e)
    retained.push_back(slots_of(found[e], [e](BlockStore& store) { return store.take_retained(e); }));
  const TierManifest& last = found.back();
  committer->take_up(slots_of(last, [](BlockStore& store) { return store.snapshot(); }),
                     tiers.tier()->epochs().back().retained, std::move(retained));
}

void Offloader::Parts::load_epoch() {
  watch.set_activity("going on from a commit");
  const EpochStores stores = epoch_stores();
  for (const StatePart part : {StatePart::trained, StatePart::frozen}) custody.begin_loading(part);
  load_epoch_records();
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!space.section_of(chunk).trainable) {
      load_epoch_parameters(chunk, *tiers.frozen());
    } else if (is_compact()) {
      load_epoch_parameters(chunk, *stores[EpochPart::parameters]);
      home->publication().take_made_on_device(chunk);  // nothing that the tier lacks
    }
  }
  for (const StatePart part : {StatePart::frozen, StatePart::trained}) custody.end_loading(part);
  add_cached(false);
}

// Every block is read once and taken in order: verified, kept where it is cached, and the parameters made of
// it where it holds whole masters.
void Offloader::Parts::load_epoch_records() {
  read_record_blocks([](ChunkId) { return true; },
                     [this](const BlockTransfer& read) { take_epoch_block(read); });
}

void Offloader::Parts::take_epoch_block(const BlockTransfer& read) {
  const ChunkId chunk = read.chunk();
  const uint64_t offset = read.block() * plan.ring_slot_bytes;
  if (std::byte* resident = records->resident(chunk))
    std::memcpy(resident + offset, read.bytes().data(), read.bytes().size());
  if (is_compact()) return;
  const uint64_t first_element = offset / plan.record_layout.tile_bytes() * kTileElements;
  derive_parameters(chunk, read.bytes(),
                    output_of(chunk) + first_element * bytes_of(space.section_of(chunk).type));
  if (read.block() + 1 == tiers.records()->block_count(chunk)) publish_loaded(chunk, output_of(chunk));
}

// Where they live in the tier and are not cached they stay where they are, and are verified whenever they are
// fetched.
void Offloader::Parts::load_epoch_parameters(ChunkId chunk, BlockStore& store) {
  if (!home->is_in_memory(chunk)) {
    for (const TensorId tensor : space.tensors_of(chunk)) {
      if (states.state(tensor) == TensorState::free) states.change(tensor, TensorState::hold);
    }
    return;
  }
  std::byte* const parameters = output_of(chunk);
  for (uint32_t b = 0; b < store.block_count(chunk); ++b) {
    BlockTransfer read;
    read.start_read(store, chunk, b,
                    {parameters + b * store.block_bytes(chunk, 0), store.block_bytes(chunk, b)},
                    TransferPort(*tiers.engine()), {.what = "parameters"});
    read.finish(watch);
  }
  publish_loaded(chunk, parameters);
}

// What lives on the device is copied down and into the tier before the commit takes its snapshot: what the
// next step writes over is in no memory that a commit could read beside it.
void Offloader::Parts::copy_parameters() {
  std::array<BlockTransfer, 4> writes;
  size_t turn = 0;
  const auto nothing = [] {};
  try {
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      const ChunkId chunk{c};
      if (!space.section_of(chunk).trainable || !home->publication().take_made_on_device(chunk)) continue;
      const std::byte* const parameters = parameters_of(chunk);
      for (uint32_t b = 0; b < tiers.copied()->block_count(chunk); ++b) {
        BlockTransfer& write = writes[turn++ % writes.size()];
        write.finish(watch);
        const std::span<const std::byte> bytes = {parameters + b * tiers.copied()->block_bytes(chunk, 0),
                                                  tiers.copied()->block_bytes(chunk, b)};
        while (!committer->begin_write(EpochPart::parameters, *tiers.engine(), chunk, b, bytes, write.write(),
                                       nothing))
          wait_watched(*tiers.engine(), watch,
                       {"room in the tier", "host -> nvme", TimeCause::write, chunk, nullptr, {}});
        const uint64_t tag =
            transfer_tag(options.step_events, TransferRole::param, TransferReason::commit, chunk);
        write.start_write(*tiers.copied(), TransferPort(*tiers.engine()), {.what = "parameters", .tag = tag});
        counters.commit_write_bytes += bytes.size();
      }
      // The memory they were copied to may be that of the next chunk's too.
      for (BlockTransfer& write : writes) write.finish(watch);
    }
  } catch (...) {
    for (BlockTransfer& write : writes) write.settle(watch);
    throw;
  }
}

void Offloader::Parts::forget_cached() {
  if (committer == nullptr) return;
  committer->forget_cached();
  knows_cached = false;
}

void Offloader::Parts::add_cached(bool dirty) {
  knows_cached = true;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (space.section_of(chunk).trainable) {
      if (!records->is_streamed(chunk))
        committer->add_cached(EpochPart::records, chunk, records->resident(chunk),
                              dirty && records->is_newer(chunk));
      if (is_compact() && home->host_slot(chunk) != nullptr)
        committer->add_cached(EpochPart::parameters, chunk, home->host_slot(chunk), dirty);
    } else if (home->host_slot(chunk) != nullptr) {
      committer->add_cached(EpochPart::frozen, chunk, home->host_slot(chunk), dirty);
    }
  }
}

void Offloader::Parts::commit_now(std::string_view info, bool retain) {
  const TimeScope committing(account, TimeCause::commit);
  const WholeState& state = custody.whole("cannot commit");
  if (!knows_cached) add_cached(true);
  if (tiers.copied() != nullptr && home->placement() == Placement::none) copy_parameters();
  committer->begin(state, info, retain);
}

std::unique_ptr<PinnedEpoch> Offloader::Parts::pin_epoch() {
  return std::make_unique<PinnedEpoch>(std::make_unique<PinnedEpoch::Parts>(
      *committer, epoch_stores(), space, tiers.make_engine("copies of commits"), epoch_memory,
      plan.epoch_slot_bytes, instruction_set));
}

bool Offloader::keeps_epochs() const {
  return parts_->plan.keeps_epochs;
}

const std::string& Offloader::why_no_epochs() const {
  return parts_->plan.why_no_epochs;
}

void Offloader::Parts::require_commits(std::string_view action) const {
  if (committer == nullptr)
    throw Error(ErrorKind::misuse,
                {std::string(action), "the state in memory", "no commits are kept: " + plan.why_no_epochs,
                 "ask first whether commits are kept"});
}

void Offloader::begin_commit(std::string_view info, bool retain) {
  Parts& p = *parts_;
  p.order.require_nothing_open("cannot commit");
  p.require_commits("cannot commit");
  p.watch.set_activity("a commit");
  if (p.put_off_commit) p.finish_update();  // which begins that one
  const uint64_t epoch = p.committer->next_epoch();
  p.begun_epoch = 0;
  if (p.update_running()) {
    p.committer->throw_failure();
    p.put_off_commit = Parts::PutOffCommit{std::string(info), retain};
  } else {
    p.commit_now(info, retain);
  }
  p.begun_epoch = epoch;
}

bool Offloader::commit_in_progress() const {
  return parts_->committer != nullptr && (parts_->put_off_commit || parts_->committer->in_progress());
}

uint64_t Offloader::finish_commit() {
  Parts& p = *parts_;
  if (p.committer == nullptr) return 0;
  p.watch.set_activity("a commit");
  const uint64_t begun = std::exchange(p.begun_epoch, 0);
  p.finish_update();
  const uint64_t last = p.committer->finish();
  if (last >= begun) return last;
  throw Error(ErrorKind::cancelled, {"the last commit was not made", p.tiers.records()->name(),
                                     "what it waited for failed, and was reported then",
                                     "go on from the commit before it, or from a checkpoint"});
}

uint64_t Offloader::last_epoch() const {
  return parts_->committer != nullptr ? parts_->committer->last_epoch() : 0;
}

const std::string& Offloader::taken_up_info() const {
  return parts_->taken_up_info;
}

bool Offloader::earlier_epoch_stays() const {
  return parts_->earlier_epoch > 0 && last_epoch() == parts_->earlier_epoch;
}

void Offloader::keep_tier(bool keep) {
  parts_->keeps_tier = keep;
}

std::unique_ptr<PinnedEpoch> Offloader::pin_epoch() {
  parts_->require_commits("cannot read a commit of");
  parts_->watch.set_activity("a copy of the last commit");
  parts_->finish_update();
  return parts_->pin_epoch();
}

}  // namespace terrace
