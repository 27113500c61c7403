#include <terrace/offload/update/record_stream.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/block_store.h>

namespace terrace {
namespace {

std::vector<ChunkId> trainable_chunks(const FlatSpace& space) {
  std::vector<ChunkId> chunks;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable) chunks.push_back(ChunkId{c});
  }
  return chunks;
}

}  // namespace

RecordStream::RecordStream(const ChunkShards& shards, RecordStore& records, io::RingBuffer& ring,
                           const MemoryPlan& plan, UpdateProgress& progress, StepEvents* events)
    : shards_(shards),
      records_(records),
      ring_(ring),
      progress_(progress),
      events_(events),
      tile_bytes_(plan.record_layout.tile_bytes()),
      block_tiles_(plan.ring_slot_bytes / tile_bytes_),
      order_(records.store(), trainable_chunks(shards.space())),
      blocks_(ring.slot_count()) {
  for (Block& block : blocks_) {
    block.stream = this;
    block.transfer.tell(&RecordStream::on_end, &block);
  }
  ready_.reserve(blocks_.size());
}

void RecordStream::begin(io::Engine* engine, bool chunk_by_chunk) {
  engine_ = engine;
  order_.begin(chunk_by_chunk);
  ready_.clear();
  reads_started_ = 0;
  failure_ = nullptr;
}

void RecordStream::start_reads() {
  while (!order_.empty()) {
    if (reading_count_ >= divide_up(blocks_.size(), 2)) return;
    const std::span<std::byte> slot = ring_.acquire();
    if (slot.empty()) return;
    start_read(slot);
  }
}

void RecordStream::start_read(std::span<std::byte> slot) {
  const ReadOrder::Item item = order_.take();
  Block& block = blocks_[static_cast<size_t>((slot.data() - ring_.memory().data()) /
                                             static_cast<ptrdiff_t>(ring_.slot_bytes()))];
  block.slot = slot;
  block.chunk = item.chunk;
  block.first_tile = item.block * block_tiles_;
  block.tile_count = std::min(block_tiles_, shards_.own(item.chunk).tile_count - block.first_tile);
  block.number = reads_started_++;
  block.phase = Phase::reading;
  totals_.read_bytes += tiles_of(block).size();
  ++reading_count_;
  note_ring();
  block.transfer.start_read(*records_.store(), item.chunk, item.block, tiles_of(block),
                            TransferPort(*engine_), name_of(block), BlockTransfer::Check::later);
}

TransferName RecordStream::name_of(const Block& block) const {
  return {.what = "optimizer states",
          .tag = transfer_tag(events_, TransferRole::state, TransferReason::update, block.chunk)};
}

void RecordStream::on_end(void* context, BlockTransfer&, const io::Completion&,
                          std::exception_ptr failure) noexcept {
  Block& block = *static_cast<Block*>(context);
  RecordStream& stream = *block.stream;
  if (failure != nullptr) stream.note_failure(std::move(failure));
  block.phase == Phase::reading ? stream.was_read(block) : stream.was_written(block);
}

void RecordStream::was_read(Block& block) {
  block.phase = Phase::ready;
  --reading_count_;
  progress_.note_read(block.chunk);
  ready_.push_back(&block);  // within its capacity
}

void RecordStream::was_written(Block& block) {
  drop(block);
}

void RecordStream::drop(Block& block) {
  ring_.release(block.slot);
  note_ring();
  block.slot = {};
  block.phase = Phase::idle;
}

RecordStream::Block* RecordStream::take_ready(FunctionRef<bool(ChunkId)> may_take) {
  const auto found = std::ranges::find_if(ready_, [&](const Block* block) { return may_take(block->chunk); });
  if (found == ready_.end()) return nullptr;
  Block* const block = *found;
  ready_.erase(found);
  const uint64_t start = clock_.now_ns();
  block->transfer.verify();
  totals_.check_ns += clock_.now_ns() - start;
  return block;
}

bool RecordStream::write(Block& block) {
  const uint64_t start = clock_.now_ns();
  const bool begun =
      records_.begin_write(block.chunk, number_of(block), tiles_of(block), block.transfer.write(), *engine_);
  totals_.check_ns += clock_.now_ns() - start;
  if (!begun) return false;
  block.phase = Phase::writing;
  totals_.write_bytes += tiles_of(block).size();
  // The update waits for reads and not for writes, so writes have the lower priority.
  block.transfer.start_write(*records_.store(), TransferPort(*engine_, io::Priority::background),
                             name_of(block));
  return true;
}

void RecordStream::note_ring() const {
  if (!is_recording(events_)) return;
  TraceEvent event = events_->begun(TraceKind::gauge);
  event.gauge = TraceGauge::ring_slots;
  event.id = ring_.slot_count() - ring_.free_count();
  events_->record(event);
}

void RecordStream::end() {
  for (Block& block : blocks_) {
    if (!block.slot.empty()) ring_.release(block.slot);
    block.slot = {};
    block.phase = Phase::idle;
  }
  ready_.clear();
  engine_ = nullptr;
}

bool RecordStream::is_reading() const {
  return std::ranges::any_of(blocks_, [](const Block& block) { return block.phase == Phase::reading; });
}

std::optional<WaitSubject> RecordStream::subject() const {
  const Block* oldest = nullptr;
  for (const Block& block : blocks_) {
    if (block.phase == Phase::reading && (oldest == nullptr || block.number < oldest->number))
      oldest = &block;
  }
  if (oldest == nullptr) {
    const auto writing = std::ranges::find(blocks_, Phase::writing, &Block::phase);
    if (writing == blocks_.end()) return std::nullopt;
    oldest = &*writing;
  }
  return oldest->transfer.subject();
}

void RecordStream::note_failure(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
}

}  // namespace terrace
