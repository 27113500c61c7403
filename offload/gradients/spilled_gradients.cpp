#include <terrace/offload/gradients/spilled_gradients.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/plan/host_slots.h>

namespace terrace {
namespace {

// A failure of the file system names file and offset; this adds whose bytes they are. Failures of corrupt
// data name their chunk already.
void name_chunk(void*, ChunkTransfer& transfer, const io::Completion&, std::exception_ptr& failure) noexcept {
  failure = reworded(failure, [&](const Error& error) {
    if (error.kind() == ErrorKind::corrupt) return error;
    ErrorParts parts = error.parts();
    parts.reason = fmt::format("gradient of chunk {}: {}", index_of(transfer.chunk()), parts.reason);
    return Error(error.kind(), std::move(parts));
  });
}

}  // namespace

SpilledGradients::SpilledGradients(const FlatSpace& space, const MemoryPlan& plan, HostArena& arena,
                                   BlockStore& store, StepWatch& watch)
    : store_(store),
      watch_(watch),
      dry_(arena.is_dry()),
      slot_count_(plan.spill_slots),
      zero_(space.chunk_count(), false),
      written_(std::make_unique<std::atomic<bool>[]>(space.chunk_count())),
      landings_(std::make_unique<Slot[]>(plan.spill_slots)),
      stagings_(std::make_unique<Slot[]>(plan.spill_slots)) {
  const std::vector<std::byte*> memory = carve_slots(arena, plan.spill_slot_bytes, 2 * plan.spill_slots,
                                                     "gradients on their way to and from nvme");
  const uint64_t most_blocks = divide_up(plan.spill_slot_bytes, plan.spill_block_bytes());
  for (uint32_t s = 0; s < slot_count_; ++s) {
    landings_[s].memory = memory[s];
    stagings_[s].memory = memory[slot_count_ + s];
    for (Slot* slot : {&landings_[s], &stagings_[s]}) {
      slot->transfer.prepare(most_blocks);
      slot->transfer.tell(name_chunk, nullptr);
    }
  }
}

SpilledGradients::Slot& SpilledGradients::slot_of(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (landings_[s].filling && landings_[s].chunk == index_of(chunk)) return landings_[s];
  }
  TERRACE_ASSERT(false, fmt::format("the gradient of chunk {} is not landing", index_of(chunk)));
  return landings_[0];
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
  slot.transfer.wait(watch_);
  if (add && !zero_[index_of(chunk)] && !is_written(chunk)) {
    // The chunk's transfer of the micro-batch before may still be under way.
    for (uint32_t s = 0; s < slot_count_; ++s) {
      if (landings_[s].chunk == index_of(chunk)) landings_[s].transfer.wait(watch_);
    }
  }
  slot.chunk = index_of(chunk);
  slot.filling = true;
  if (add && zero_[index_of(chunk)]) {
    if (!dry_) std::memset(slot.memory, 0, bytes_of_chunk(chunk));
  } else if (add) {
    landing_read_bytes_ += bytes_of_chunk(chunk);
    read(slot, TransferReason::step, TransferPort(*io_, io::Priority::critical));
  }
  zero_[index_of(chunk)] = false;
  written_[index_of(chunk)].store(false, std::memory_order_relaxed);
}

void SpilledGradients::wait_old(ChunkId chunk) {
  slot_of(chunk).transfer.wait(watch_);
}

void SpilledGradients::set_zero(ChunkId chunk) {
  zero_[index_of(chunk)] = true;
  written_[index_of(chunk)].store(true, std::memory_order_release);
}

void SpilledGradients::read(Slot& slot, TransferReason reason, const TransferPort& port) {
  const ChunkId chunk{slot.chunk};
  slot.transfer.start_read(store_, chunk, slot.memory, port, name_of(chunk, reason));
}

TransferName SpilledGradients::name_of(ChunkId chunk, TransferReason reason) const {
  return {.what = "gradients", .tag = transfer_tag(watch_.events(), TransferRole::grad, reason, chunk)};
}

void SpilledGradients::write(ChunkId chunk) {
  Slot& slot = slot_of(chunk);
  slot.transfer.wait(watch_);  // for the earlier sum, where nothing was added to it
  slot.filling = false;
  landing_write_bytes_ += bytes_of_chunk(chunk);
  slot.transfer.start_write(store_, chunk, slot.memory, TransferPort(*io_, io::Priority::background),
                            name_of(chunk, TransferReason::step), &written_[index_of(chunk)]);
}

void SpilledGradients::finish_writes() {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    const Slot& slot = landings_[(next_ + s) % slot_count_];
    if (slot.chunk != kNone && !slot.filling) slot.transfer.wait(watch_);
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
    read(*free, TransferReason::update, TransferPort(engine));
  }
  return true;
}

bool SpilledGradients::is_open(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk != index_of(chunk)) continue;
    if (!stagings_[s].transfer.event().done()) return false;
    stagings_[s].transfer.event().wait();
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
    if (stagings_[s].chunk != kNone && !stagings_[s].transfer.event().done())
      return stagings_[s].transfer.subject();
  }
  return std::nullopt;
}

void SpilledGradients::release(ChunkId chunk) {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk == index_of(chunk)) stagings_[s].chunk = kNone;
  }
}

}  // namespace terrace
