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

RecordStream::RecordStream(const FlatSpace& space, RecordStore& records, io::RingBuffer& ring,
                           const MemoryPlan& plan, UpdateProgress& progress, StepEvents* events)
    : space_(space),
      records_(records),
      ring_(ring),
      progress_(progress),
      events_(events),
      tile_bytes_(plan.record_layout.tile_bytes()),
      block_tiles_(plan.ring_slot_bytes / tile_bytes_),
      order_(records.store(), trainable_chunks(space)),
      blocks_(ring.slot_count()) {
  for (Block& block : blocks_) block.stream = this;
  ready_.reserve(blocks_.size());
}

void RecordStream::begin(io::Engine* engine, bool chunk_by_chunk) {
  engine_ = engine;
  order_.begin(chunk_by_chunk);
  ready_.clear();
  reads_started_ = 0;
  has_turn_ = true;
  failure_ = nullptr;
}

void RecordStream::start_reads() {
  while (!order_.empty()) {
    if (reading_count_ >= divide_up(blocks_.size(), 2)) return;
    const std::span<std::byte> slot = ring_.acquire();
    if (slot.empty()) return;
    has_turn_ = records_.may_read();
    if (!has_turn_) return ring_.release(slot);
    start_read(slot);
  }
  records_.give_back_turn();
}

void RecordStream::start_read(std::span<std::byte> slot) {
  const ReadOrder::Item item = order_.take();
  Block& block = blocks_[static_cast<size_t>((slot.data() - ring_.memory().data()) /
                                             static_cast<ptrdiff_t>(ring_.slot_bytes()))];
  block.slot = slot;
  block.chunk = item.chunk;
  block.first_tile = item.block * block_tiles_;
  block.tile_count = std::min(block_tiles_, space_.chunk(item.chunk).tile_count() - block.first_tile);
  block.number = reads_started_++;
  block.phase = Phase::reading;
  block.request = records_.store()->read_request(item.chunk, item.block, tiles_of(block));
  block.request.on_complete = &RecordStream::on_read;
  block.request.context = &block;
  block.request.tag = transfer_tag(events_, TransferRole::state, TransferReason::update, item.chunk);
  totals_.read_bytes += block.request.bytes;
  ++reading_count_;
  note_ring();
  engine_->submit({&block.request, 1});
}

void RecordStream::on_read(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  RecordStream& stream = *block.stream;
  try {
    stream.records_.store()->end_transfer(block.request, completion);
  } catch (...) {
    stream.note_failure(std::current_exception());
  }
  block.phase = Phase::ready;
  --stream.reading_count_;
  stream.progress_.note_read(block.chunk);
  stream.ready_.push_back(&block);  // within its capacity
}

RecordStream::Block* RecordStream::take_ready(FunctionRef<bool(ChunkId)> may_take) {
  const auto found = std::ranges::find_if(ready_, [&](const Block* block) { return may_take(block->chunk); });
  if (found == ready_.end()) return nullptr;
  Block* const block = *found;
  ready_.erase(found);
  const uint64_t start = clock_.now_ns();
  records_.store()->verify(block->chunk, number_of(*block), block->request);
  totals_.check_ns += clock_.now_ns() - start;
  return block;
}

bool RecordStream::write(Block& block) {
  const uint64_t start = clock_.now_ns();
  const bool begun =
      records_.begin_write(block.chunk, number_of(block), tiles_of(block), block.write, *engine_);
  totals_.check_ns += clock_.now_ns() - start;
  if (!begun) return false;
  block.phase = Phase::writing;
  totals_.write_bytes += tiles_of(block).size();
  submit_write(block);
  return true;
}

void RecordStream::submit_write(Block& block) {
  block.request = block.write.request;
  block.request.priority = io::Priority::background;  // the update waits for reads
  block.request.on_complete = &RecordStream::on_written;
  block.request.context = &block;
  block.request.tag = transfer_tag(events_, TransferRole::state, TransferReason::update, block.chunk);
  engine_->submit({&block.request, 1});
}

void RecordStream::on_written(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  RecordStream& stream = *block.stream;
  BlockStore& store = *stream.records_.store();
  const BlockStore::WriteEnd end = store.end_write(block.write, completion);
  if (end == BlockStore::WriteEnd::again) return stream.submit_write(block);
  if (end == BlockStore::WriteEnd::failed)
    stream.note_failure(std::make_exception_ptr(store.io_error(block.write.request, completion)));
  stream.ring_.release(block.slot);
  stream.note_ring();
  block.slot = {};
  block.phase = Phase::idle;
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
  const char* link = "nvme -> host";
  TimeCause cause = TimeCause::read;
  if (oldest == nullptr) {
    link = "host -> nvme";
    cause = TimeCause::write;
    const auto writing = std::ranges::find(blocks_, Phase::writing, &Block::phase);
    if (writing == blocks_.end()) return std::nullopt;
    oldest = &*writing;
  }
  return WaitSubject{"optimizer states",
                     link,
                     cause,
                     oldest->chunk,
                     &oldest->request,
                     records_.store()->path_of(oldest->request)};
}

void RecordStream::note_failure(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
}

}  // namespace terrace
