// The epochs of an Offloader: commits, and taking up what an earlier run committed.
#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/offloader_parts.h>
#include <terrace/offload/pinned_epoch_parts.h>

namespace terrace {
namespace {

// A block of an epoch on its way into the ring.
struct BlockRead {
  std::span<std::byte> memory;
  ChunkId chunk{};
  uint32_t block = 0;
  io::Request request{};
  io::Completion completion{};
  bool done = true;
};

void on_block_read(void* context, const io::Completion& completion) noexcept {
  auto& read = *static_cast<BlockRead*>(context);
  read.completion = completion;
  read.done = true;
}

void start_read(BlockStore& store, BlockRead& read, io::Engine& engine) {
  read.request = store.read_request(read.chunk, read.block,
                                    read.memory.first(store.block_bytes(read.chunk, read.block)));
  read.request.on_complete = on_block_read;
  read.request.context = &read;
  read.done = false;
  engine.submit({&read.request, 1});
}

}  // namespace

void Offloader::Parts::keep_epochs() {
  epoch_memory = arena.take(plan.epoch_slots * plan.epoch_slot_bytes, "reading epochs");
  committer = std::make_unique<EpochCommitter>(epoch_stores(), space.chunk_count(), options.retained_epochs,
                                               make_engine(), watch, log);
  records->commit_with(committer.get());
  if (!found_epochs.empty()) take_up_epoch();
}

EpochStores Offloader::Parts::epoch_stores() const {
  EpochStores stores;
  stores.space = tier.get();
  stores.parts[index_of(EpochPart::records)] = record_store.get();
  stores.parts[index_of(EpochPart::frozen)] = frozen_store.get();
  return stores;
}

void Offloader::Parts::take_up_epoch() {
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
  std::vector<EpochSlots> retained;
  for (size_t e = 0; e + 1 < found_epochs.size(); ++e)
    retained.push_back(slots_of(found_epochs[e], [e](BlockStore& store) { return store.take_retained(e); }));
  const TierManifest& last = found_epochs.back();
  taken_up_info = last.info;
  committer->take_up(slots_of(last, [](BlockStore& store) { return store.snapshot(); }),
                     tier->epochs().back().retained, std::move(retained));
  found_epochs.clear();
  watch.set_activity("taking up an epoch");
  load_epoch_records();
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (!space.section_of(ChunkId{c}).trainable) load_epoch_frozen(ChunkId{c});
  }
  add_cached(false);
}

// Every block is read once, several at a time, and taken in order: verified, kept where it is cached, and the
// parameters made of it.
void Offloader::Parts::load_epoch_records() {
  std::vector<BlockRead> reads(plan.ring_slots);
  for (BlockRead& read : reads) read.memory = ring.acquire();
  struct Place {
    ChunkId chunk;
    uint32_t block;
  };
  std::vector<Place> places;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const uint32_t blocks =
        space.section_of(ChunkId{c}).trainable ? record_store->block_count(ChunkId{c}) : 0;
    for (uint32_t b = 0; b < blocks; ++b) places.push_back({ChunkId{c}, b});
  }
  std::exception_ptr failure;
  try {
    size_t started = 0;
    for (size_t at = 0; at < places.size(); ++at) {
      for (; started < std::min(places.size(), at + reads.size()); ++started) {
        BlockRead& next = reads[started % reads.size()];
        next.chunk = places[started].chunk;
        next.block = places[started].block;
        start_read(*record_store, next, *engine);
      }
      BlockRead& read = reads[at % reads.size()];
      while (!read.done) {
        wait_watched(*engine, watch,
                     {"optimizer states", "nvme -> host", read.chunk, &read.request,
                      record_store->path_of(read.request)});
      }
      record_store->end_read(read.chunk, read.block, read.request, read.completion);
      const uint64_t offset = read.block * plan.ring_slot_bytes;
      const std::span<std::byte> tiles = {read.request.data, read.request.bytes};
      if (std::byte* resident = records->resident(read.chunk))
        std::memcpy(resident + offset, tiles.data(), tiles.size());
      derive_parameters(read.chunk, offset / plan.record_layout.tile_bytes(), tiles, output_of(read.chunk));
      if (read.block + 1 == record_store->block_count(read.chunk))
        publish_loaded(read.chunk, output_of(read.chunk));
    }
  } catch (...) {
    failure = std::current_exception();
  }
  while (engine->in_flight() > 0) engine->wait(1);  // what is in flight refers to what goes now
  for (BlockRead& read : reads) ring.release(read.memory);
  if (failure != nullptr) std::rethrow_exception(failure);
}

// Where it is not cached it stays where it is, and is verified whenever it is fetched.
void Offloader::Parts::load_epoch_frozen(ChunkId chunk) {
  if (!home->is_in_memory(chunk)) {
    for (const TensorId tensor : space.tensors_of(chunk)) {
      if (states.state(tensor) == TensorState::free) states.change(tensor, TensorState::hold);
    }
    return;
  }
  std::byte* const parameters = output_of(chunk);
  for (uint32_t b = 0; b < frozen_store->block_count(chunk); ++b) {
    const uint64_t offset = b * frozen_store->block_bytes(chunk, 0);
    BlockRead read{
        .memory = {parameters + offset, frozen_store->block_bytes(chunk, b)}, .chunk = chunk, .block = b};
    start_read(*frozen_store, read, *engine);
    while (!read.done) {
      wait_watched(*engine, watch,
                   {"parameters", "nvme -> host", chunk, &read.request, frozen_store->path_of(read.request)});
    }
    frozen_store->end_read(chunk, b, read.request, read.completion);
  }
  publish_loaded(chunk, parameters);
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
    } else if (home->host_slot(chunk) != nullptr) {
      committer->add_cached(EpochPart::frozen, chunk, home->host_slot(chunk), dirty);
    }
  }
}

std::unique_ptr<PinnedEpoch> Offloader::Parts::pin_epoch() {
  return std::make_unique<PinnedEpoch>(std::make_unique<PinnedEpoch::Parts>(
      *committer, epoch_stores(), space, make_engine(), epoch_memory, plan.epoch_slot_bytes));
}

bool Offloader::keeps_epochs() const {
  return parts_->plan.keeps_epochs;
}

const std::string& Offloader::why_no_epochs() const {
  return parts_->plan.why_no_epochs;
}

void Offloader::begin_commit(std::string_view info, bool retain) {
  Parts& p = *parts_;
  TERRACE_ASSERT(p.phase == Phase::idle, "the state is committed between steps");
  TERRACE_ASSERT(p.committer != nullptr, "nothing is committed where " + p.plan.why_no_epochs);
  p.watch.set_activity("a commit");
  if (!p.knows_cached) p.add_cached(true);
  p.committer->begin(info, retain);
}

bool Offloader::commit_in_progress() const {
  return parts_->committer != nullptr && parts_->committer->in_progress();
}

uint64_t Offloader::finish_commit() {
  if (parts_->committer == nullptr) return 0;
  parts_->watch.set_activity("a commit");
  return parts_->committer->finish();
}

uint64_t Offloader::last_epoch() const {
  return parts_->committer != nullptr ? parts_->committer->last_epoch() : 0;
}

const std::string& Offloader::taken_up_info() const {
  return parts_->taken_up_info;
}

void Offloader::keep_tier(bool keep) {
  parts_->keeps_tier = keep;
}

std::unique_ptr<PinnedEpoch> Offloader::pin_epoch() {
  TERRACE_ASSERT(parts_->committer != nullptr, "there are no epochs where " + parts_->plan.why_no_epochs);
  parts_->watch.set_activity("a copy of the last epoch");
  return parts_->pin_epoch();
}

bool Offloader::epoch_is_pinned() const {
  return parts_->committer != nullptr && parts_->committer->is_pinned();
}

}  // namespace terrace
