#include <terrace/offload/gradients/gradients_on_nvme.h>

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

GradientsOnNvme::GradientsOnNvme(const RunContext& run, HostArena& arena, const SpillTier& tier,
                                 GradientArithmetic& arithmetic, const AccumulationRules& rules)
    : shards_(run.shards),
      store_(*tier.store),
      io_(*tier.io),
      watch_(run.watch),
      arithmetic_(arithmetic),
      rules_(rules),
      dry_(arena.is_dry()),
      slot_count_(run.plan.spill_slots),
      zero_(run.space.chunk_count(), false),
      written_(std::make_unique<std::atomic<bool>[]>(run.space.chunk_count())),
      landings_(std::make_unique<Slot[]>(run.plan.spill_slots)),
      stagings_(std::make_unique<Slot[]>(run.plan.spill_slots)) {
  const MemoryPlan& plan = run.plan;
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

GradientsOnNvme::Slot* GradientsOnNvme::filling_slot(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (landings_[s].filling && landings_[s].chunk == index_of(chunk)) return &landings_[s];
  }
  return nullptr;
}

GradientsOnNvme::Slot& GradientsOnNvme::slot_of(ChunkId chunk) const {
  Slot* const slot = filling_slot(chunk);
  TERRACE_ASSERT(slot != nullptr, fmt::format("the gradient of chunk {} is not landing", index_of(chunk)));
  return *slot;
}

void GradientsOnNvme::make_room(const GradientLanding& landing, Finish finish) {
  if (filling_slot(landing.chunk) != nullptr) return;  // the chunk has kept its slot since it last landed
  if (landings_[next_].filling) {
    const ChunkId before{landings_[next_].chunk};
    finish(before);
    if (filling_slot(before) != nullptr) write(before);
  }
  begin(landing.chunk, !landing.begins);
}

std::byte* GradientsOnNvme::filled(ChunkId chunk) {
  Slot& slot = slot_of(chunk);
  slot.transfer.wait(watch_);
  return slot.memory;
}

// The sums are taken at every landing: a last micro-batch without a gradient does not read the gradient back.
// Where a group of micro-batches joins then, it does, and they are taken once more.
void GradientsOnNvme::sum_up(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  if (own.runs.empty()) {
    if (own.ends) arithmetic_.sums().note_complete(own.chunk);
    return;
  }
  std::byte* const to = filled(own.chunk);
  if (gradient == to) return arithmetic_.take(own.chunk, type(own.chunk), to);
  arithmetic_.add(own, to, gradient, is_last);
}

void GradientsOnNvme::add(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  sum_up(own, gradient, is_last);
  if (rules_.layer_major ? own.ends : own.completes) write(own.chunk);
}

void GradientsOnNvme::add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) {
  const ChunkId chunk = own.chunk;
  if (own.begins && !own.runs.empty() && own.runs.front().element_count == shards_.elements(chunk)) {
    arithmetic_.sums().set_zero(chunk);
    zero_[index_of(chunk)] = true;
    return written_[index_of(chunk)].store(true, std::memory_order_release);
  }
  const bool joins = rules_.is_last(own) &&
                     std::ranges::any_of(own.runs, [](const GradientRun& run) { return run.open_group > 0; });
  if (joins || std::ranges::any_of(own.runs, &GradientRun::is_first)) {
    make_room(landing, finish);
    sum_up(own, nullptr, true);
  }
  if (landing.ends && filling_slot(chunk) != nullptr) write(chunk);
}

bool GradientsOnNvme::take(const GradientLanding& landing, const HandedPart& part, const EvictionContext&,
                           Finish finish) {
  arithmetic_.sums().forget(landing.chunk);
  make_room(landing, finish);
  add_handed_part(*this, landing, part, bytes_of(shards_.space().section_of(landing.chunk).type));
  return false;
}

void GradientsOnNvme::begin(ChunkId chunk, bool add) {
  Slot& slot = landings_[next_];
  TERRACE_ASSERT(!slot.filling, "a landing slot is handed to write() before it is taken again");
  next_ = (next_ + 1) % slot_count_;
  slot.transfer.wait(watch_);
  if (add && !zero_[index_of(chunk)] && !is_complete(chunk)) {
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
    landing_read_bytes_.fetch_add(bytes_of_chunk(chunk), std::memory_order_relaxed);
    read(slot, TransferReason::step, TransferPort(io_, io::Priority::critical));
  }
  zero_[index_of(chunk)] = false;
  written_[index_of(chunk)].store(false, std::memory_order_relaxed);
}

void GradientsOnNvme::read(Slot& slot, TransferReason reason, const TransferPort& port) {
  const ChunkId chunk{slot.chunk};
  slot.transfer.start_read(store_, chunk, slot.memory, port, name_of(chunk, reason));
}

TransferName GradientsOnNvme::name_of(ChunkId chunk, TransferReason reason) const {
  return {.what = "gradients", .tag = transfer_tag(watch_.events(), TransferRole::grad, reason, chunk)};
}

void GradientsOnNvme::write(ChunkId chunk) {
  Slot& slot = slot_of(chunk);
  slot.transfer.wait(watch_);  // for the earlier sum, where nothing was added to it
  slot.filling = false;
  landing_write_bytes_.fetch_add(bytes_of_chunk(chunk), std::memory_order_relaxed);
  slot.transfer.start_write(store_, chunk, slot.memory, TransferPort(io_, io::Priority::background),
                            name_of(chunk, TransferReason::step), &written_[index_of(chunk)]);
}

void GradientsOnNvme::finish(bool ends_step) {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (landings_[s].filling) write(ChunkId{landings_[s].chunk});
  }
  for (uint32_t s = 0; ends_step && s < slot_count_; ++s) {
    const Slot& slot = landings_[(next_ + s) % slot_count_];
    if (slot.chunk != kNone && !slot.filling) slot.transfer.wait(watch_);
  }
}

bool GradientsOnNvme::start_open(ChunkId chunk, io::Engine& engine) {
  if (!is_complete(chunk)) return false;
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

bool GradientsOnNvme::is_open(ChunkId chunk) const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk != index_of(chunk)) continue;
    if (!stagings_[s].transfer.event().done()) return false;
    stagings_[s].transfer.event().wait();
    return true;
  }
  return false;
}

std::byte* GradientsOnNvme::gradient(ChunkId chunk) {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk == index_of(chunk)) return stagings_[s].memory;
  }
  TERRACE_ASSERT(false, fmt::format("the gradient of chunk {} is not open", index_of(chunk)));
  return nullptr;
}

std::optional<WaitSubject> GradientsOnNvme::opening_subject() const {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk != kNone && !stagings_[s].transfer.event().done())
      return stagings_[s].transfer.subject();
  }
  return std::nullopt;
}

void GradientsOnNvme::release(ChunkId chunk) {
  arithmetic_.sums().forget(chunk);
  put_back(chunk);
}

void GradientsOnNvme::put_back(ChunkId chunk) {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (stagings_[s].chunk == index_of(chunk)) stagings_[s].chunk = kNone;
  }
}

}  // namespace terrace
