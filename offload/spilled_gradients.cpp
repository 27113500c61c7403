#include <terrace/offload/spilled_gradients.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/host_slots.h>

namespace terrace {
namespace {

// A failure of the file system names file and offset; this one says whose bytes they are.
Error with_chunk(const Error& failure, ChunkId chunk) {
  ErrorParts parts = failure.parts();
  parts.reason = fmt::format("gradient of chunk {}: {}", index_of(chunk), parts.reason);
  return Error(failure.kind(), std::move(parts));
}

}  // namespace

SpilledGradients::SpilledGradients(const FlatSpace& space, const MemoryPlan& plan, HostArena& arena,
                                   BlockStore& store, StepWatch& watch)
    : store_(store),
      watch_(watch),
      dry_(arena.is_dry()),
      slot_count_(plan.spill_slots),
      landings_(std::make_unique<Slot[]>(plan.spill_slots)),
      stagings_(std::make_unique<Slot[]>(plan.spill_slots)),
      zero_(space.chunk_count(), false),
      written_(std::make_unique<std::atomic<bool>[]>(space.chunk_count())) {
  const std::vector<std::byte*> memory = carve_slots(arena, plan.spill_slot_bytes, 2 * plan.spill_slots,
                                                     "gradients on their way to and from nvme");
  const uint64_t most_blocks = divide_up(plan.spill_slot_bytes, plan.spill_block_bytes());
  for (uint32_t s = 0; s < slot_count_; ++s) {
    make_slot(landings_[s], memory[s], most_blocks);
    make_slot(stagings_[s], memory[slot_count_ + s], most_blocks);
  }
}

SpilledGradients::~SpilledGradients() {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    landings_[s].transfer.wait_done();
    stagings_[s].transfer.wait_done();
  }
}

void SpilledGradients::make_slot(Slot& slot, std::byte* memory, uint64_t most_blocks) {
  slot.memory = memory;
  slot.blocks.resize(most_blocks);
  for (uint32_t b = 0; b < most_blocks; ++b) {
    slot.blocks[b].owner = this;
    slot.blocks[b].slot = &slot;
    slot.blocks[b].number = b;
  }
}

SpilledGradients::Slot& SpilledGradients::slot_of(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (landings_[s].filling && landings_[s].chunk == index_of(chunk)) return landings_[s];
  }
  TERRACE_ASSERT(false, fmt::format("the gradient of chunk {} is not landing", index_of(chunk)));
  return landings_[0];
}

WaitSubject SpilledGradients::subject(const Slot& slot, TimeCause cause) const {
  const Block& first = slot.blocks.front();
  return {"gradients",    cause == TimeCause::read ? "nvme -> host" : "host -> nvme",
          cause,          ChunkId{slot.chunk},
          &first.request, store_.path_of(first.request)};
}

void SpilledGradients::wait(const Slot& slot, TimeCause cause) {
  if (!slot.transfer.done()) wait_done_watched(slot.transfer, watch_, subject(slot, cause));
  slot.transfer.wait();  // for what it failed with
}

std::optional<ChunkId> SpilledGradients::filling_next() const {
  if (!landings_[next_].filling) return std::nullopt;
  return ChunkId{landings_[next_].chunk};
}

std::optional<ChunkId> SpilledGradients::filling() const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (landings_[s].filling) return ChunkId{landings_[s].chunk};
  }
  return std::nullopt;
}

bool SpilledGradients::is_filling(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (landings_[s].filling && landings_[s].chunk == index_of(chunk)) return true;
  }
  return false;
}

std::byte* SpilledGradients::landing(ChunkId chunk) const {
  return slot_of(chunk).memory;
}

void SpilledGradients::begin(ChunkId chunk, bool add) {
  Slot& slot = landings_[next_];
  TERRACE_ASSERT(!slot.filling, "a landing slot is handed to write() before it is taken again");
  next_ = (next_ + 1) % slot_count_;
  wait(slot, TimeCause::write);
  if (add && !zero_[index_of(chunk)] && !is_written(chunk)) {
    // Of the micro-batch before.
    for (uint32_t s = 0; s < slot_count_; ++s) {
      if (landings_[s].chunk == index_of(chunk)) wait(landings_[s], TimeCause::write);
    }
  }
  slot.chunk = index_of(chunk);
  slot.filling = true;
  if (add && zero_[index_of(chunk)]) {
    if (!dry_) std::memset(slot.memory, 0, bytes_of_chunk(chunk));
  } else if (add) {
    landing_read_bytes_ += bytes_of_chunk(chunk);
    read(slot, TransferReason::step,
         [this](const io::Request& request) { io_->submit(request, io::Priority::critical); });
  }
  zero_[index_of(chunk)] = false;
  written_[index_of(chunk)].store(false, std::memory_order_relaxed);
}

void SpilledGradients::wait_old(ChunkId chunk) {
  wait(slot_of(chunk), TimeCause::read);
}

void SpilledGradients::set_zero(ChunkId chunk) {
  zero_[index_of(chunk)] = true;
  written_[index_of(chunk)].store(true, std::memory_order_release);
}

void SpilledGradients::start(Slot& slot) {
  const uint32_t blocks = store_.block_count(ChunkId{slot.chunk});
  slot.failed.store(false, std::memory_order_relaxed);
  slot.left.store(blocks, std::memory_order_relaxed);
  slot.transfer.begin(blocks);
}

template <typename Submit>
void SpilledGradients::read(Slot& slot, TransferReason reason, Submit submit) {
  const ChunkId chunk{slot.chunk};
  start(slot);
  std::byte* to = slot.memory;
  for (Block& block : std::span(slot.blocks).first(store_.block_count(chunk))) {
    const uint64_t bytes = store_.block_bytes(chunk, block.number);
    block.request = store_.read_request(chunk, block.number, {to, bytes});
    block.request.on_complete = &SpilledGradients::on_read;
    block.request.context = &block;
    block.request.tag = transfer_tag(watch_.events(), TransferRole::grad, reason, chunk);
    to += bytes;
    submit(block.request);
  }
}

void SpilledGradients::on_read(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  const ChunkId chunk{block.slot->chunk};
  std::exception_ptr failure;
  try {
    block.owner->store_.end_read(chunk, block.number, block.request, completion);
  } catch (const Error& error) {
    failure = std::make_exception_ptr(error.kind() == ErrorKind::corrupt ? error : with_chunk(error, chunk));
  } catch (...) {
    failure = std::current_exception();
  }
  block.slot->transfer.complete_one(failure);
}

void SpilledGradients::write(ChunkId chunk) {
  Slot& slot = slot_of(chunk);
  TERRACE_ASSERT(slot.transfer.done(), "what was written before is read back before it is written over");
  slot.filling = false;
  start(slot);
  landing_write_bytes_ += bytes_of_chunk(chunk);
  const std::byte* from = slot.memory;
  for (Block& block : std::span(slot.blocks).first(store_.block_count(chunk))) {
    const uint64_t bytes = store_.block_bytes(chunk, block.number);
    const bool begun = store_.begin_write(chunk, block.number, {from, bytes}, block.write);
    TERRACE_ASSERT(begun, "a block that is written in place has a slot");
    block.request = block.write.request;
    block.request.on_complete = &SpilledGradients::on_written;
    block.request.context = &block;
    block.request.tag = transfer_tag(watch_.events(), TransferRole::grad, TransferReason::step, chunk);
    from += bytes;
    io_->submit(block.request, io::Priority::background);
  }
}

void SpilledGradients::on_written(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  Slot& slot = *block.slot;
  SpilledGradients& owner = *block.owner;
  const ChunkId chunk{slot.chunk};
  std::exception_ptr failure;
  if (owner.store_.end_write(block.write, completion) !=
      BlockStore::WriteEnd::done) {  // in place: no other slot
    failure = std::make_exception_ptr(with_chunk(owner.store_.io_error(block.request, completion), chunk));
    slot.failed.store(true, std::memory_order_relaxed);
  }
  if (slot.left.fetch_sub(1, std::memory_order_acq_rel) == 1 && !slot.failed.load(std::memory_order_relaxed))
    owner.written_[index_of(chunk)].store(true, std::memory_order_release);
  slot.transfer.complete_one(failure);
}

void SpilledGradients::finish_writes() {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    const Slot& slot = landings_[(next_ + s) % slot_count_];
    if (slot.chunk != kNone && !slot.filling) wait(slot, TimeCause::write);
  }
}

bool SpilledGradients::start_open(ChunkId chunk, io::Engine& engine) {
  if (!is_written(chunk)) return false;
  Slot* free = nullptr;
  for (uint32_t s = slot_count_; s-- > 0;) {
    TERRACE_ASSERT(stagings_[s].chunk != index_of(chunk), "a gradient is opened once");
    if (stagings_[s].chunk == kNone) free = &stagings_[s];
  }
  if (free == nullptr) return false;
  free->chunk = index_of(chunk);
  if (zero_[index_of(chunk)]) {
    if (!dry_) std::memset(free->memory, 0, bytes_of_chunk(chunk));
  } else {
    opening_read_bytes_ += bytes_of_chunk(chunk);
    read(*free, TransferReason::update, [&engine](const io::Request& request) {
      engine.submit({&request, 1});
    });
  }
  return true;
}

bool SpilledGradients::is_open(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk != index_of(chunk)) continue;
    if (!stagings_[s].transfer.done()) return false;
    stagings_[s].transfer.wait();
    return true;
  }
  return false;
}

std::byte* SpilledGradients::opened(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk == index_of(chunk)) return stagings_[s].memory;
  }
  TERRACE_ASSERT(false, fmt::format("the gradient of chunk {} is not open", index_of(chunk)));
  return nullptr;
}

std::optional<WaitSubject> SpilledGradients::opening_subject() const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk != kNone && !stagings_[s].transfer.done())
      return subject(stagings_[s], TimeCause::read);
  }
  return std::nullopt;
}

void SpilledGradients::release(ChunkId chunk) {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk == index_of(chunk)) stagings_[s].chunk = kNone;
  }
}

}  // namespace terrace
