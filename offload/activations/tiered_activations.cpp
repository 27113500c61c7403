#include <terrace/offload/activations/tiered_activations.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/offload/plan/budget_shortage.h>

namespace terrace {
namespace {

uint64_t number_of(SavedActivation saved) {
  return static_cast<uint64_t>(saved);
}

// Notes of recorded steps have room for 32 bits.
uint32_t short_number(SavedActivation saved) {
  return static_cast<uint32_t>(number_of(saved));
}

// A failure of the file system names file and offset; this adds whose bytes they are.
void name_saved(void* context, ChunkTransfer&, const io::Completion&, std::exception_ptr& failure) noexcept {
  failure = reworded(failure, [&](const Error& error) {
    ErrorParts parts = error.parts();
    parts.reason = fmt::format("saved activation {}: {}", number_of(*static_cast<SavedActivation*>(context)),
                               parts.reason);
    return Error(error.kind(), std::move(parts));
  });
}

// Adds the time that it lives to a sum.
class WaitTime {
 public:
  explicit WaitTime(uint64_t& sum) : sum_(sum), start_(SteadyClock().now_ns()) {}
  ~WaitTime() { sum_ += SteadyClock().now_ns() - start_; }
  WaitTime(const WaitTime&) = delete;
  WaitTime& operator=(const WaitTime&) = delete;

 private:
  uint64_t& sum_;
  const uint64_t start_;
};

}  // namespace

TieredActivations::TieredActivations(const Options& options, Device& device, StepWatch& watch, Log& log,
                                     std::unique_ptr<SavedDisk> disk, io::IoThread* io)
    : watch_(watch),
      device_(device),
      memory_(options.memory, device, log),
      disk_(std::move(disk)),
      io_(io),
      other_host_bytes_(options.other_host_bytes),
      budget_that_leaves_(options.budget_that_leaves) {
  TERRACE_ASSERT(disk_ == nullptr || options.memory.granule_bytes % SavedDisk::kUnitBytes == 0,
                 "what goes to nvme is whole units");
}

TieredActivations::~TieredActivations() {
  for (const std::unique_ptr<Block>& block : blocks_) {
    block->copied.wait_done();
    wait_for_transfer(*block);
  }
}

// --- Blocks ---

TieredActivations::Block& TieredActivations::at(SavedActivation saved) {
  const auto found = std::ranges::lower_bound(blocks_, saved, {}, [](const auto& b) { return b->number; });
  if (found == blocks_.end() || (*found)->number != saved)
    throw Error(ErrorKind::misuse, {"cannot use", fmt::format("saved activation {}", number_of(saved)),
                                    "it was dropped, or never saved", "drop one after its last use"});
  return **found;
}

TieredActivations::Block& TieredActivations::add(uint64_t bytes) {
  if (unused_.empty()) unused_.push_back(std::make_unique<Block>());
  blocks_.push_back(std::move(unused_.back()));
  unused_.pop_back();
  Block& block = *blocks_.back();
  block.number = SavedActivation{++last_number_};
  block.bytes = bytes;
  block.is_on_disk = block.was_loaded = false;
  cost_bytes_ += memory_.cost_bytes(bytes);
  return block;
}

void TieredActivations::remove(const Block& block) noexcept {
  const auto found =
      std::ranges::lower_bound(blocks_, block.number, {}, [](const auto& b) { return b->number; });
  cost_bytes_ -= memory_.cost_bytes(block.bytes);
  unused_.push_back(std::move(*found));
  blocks_.erase(found);
}

void TieredActivations::forget_memory(Block& block) {
  memory_.give_back(block.memory);
  block.memory = nullptr;
}

void TieredActivations::note_peaks() {
  const uint64_t nvme_bytes = disk_ != nullptr ? disk_->used_bytes() : 0;
  host_peak_bytes_ = std::max(host_peak_bytes_, memory_.used_bytes());
  nvme_peak_bytes_ = std::max(nvme_peak_bytes_, nvme_bytes);
  step_.wanted_bytes = std::max(step_.wanted_bytes, cost_bytes_);
  step_.host_bytes = std::max(step_.host_bytes, memory_.used_bytes());
  step_.nvme_bytes = std::max(step_.nvme_bytes, nvme_bytes);
}

// --- Away and back ---

SavedActivation TieredActivations::start_save(const std::byte* source, uint64_t bytes) {
  TERRACE_ASSERT(bytes > 0, "an activation has bytes");
  ahead_of_ = 0;
  std::byte* const memory = make_room(bytes, nullptr);
  Block& block = add(bytes);
  block.memory = memory;
  note_peaks();
  d2h_bytes_ += bytes;
  block.copy = Copy::saving;
  start_copy(block, memory, source);
  write_ahead(bytes);
  return block.number;
}

// Both ends are cut where the host's memory is.
void TieredActivations::start_copy(Block& block, std::byte* to, const std::byte* from) {
  uint32_t pieces = 0;
  memory_.for_each_piece(block.memory, block.bytes, [&](uint64_t, uint64_t) { ++pieces; });
  block.copied.begin(pieces);
  memory_.for_each_piece(block.memory, block.bytes, [&](uint64_t offset, uint64_t bytes) {
    const uint32_t number = short_number(block.number);
    if (block.copy == Copy::saving) {
      device_.copy_program_to_host(
          to + offset, from + offset, bytes, nullptr, block.copied,
          from_device_note(watch_.events(), TransferRole::activation, TransferReason::step, number));
    } else {
      device_.copy_to_program(
          to + offset, from + offset, bytes, nullptr, block.copied,
          to_device_note(watch_.events(), TransferRole::activation, TransferReason::step, number));
    }
  });
}

void TieredActivations::finish_save(SavedActivation saved) {
  settle_copy(at(saved));
}

bool TieredActivations::start_load(SavedActivation saved, std::byte* destination, Room room) {
  Block& block = at(saved);
  if (block.copy == Copy::loading)
    throw Error(ErrorKind::misuse, {"cannot load", fmt::format("saved activation {}", number_of(saved)),
                                    "it is on its way already", "finish that load first"});
  settle_copy(block);
  if (block.memory == nullptr) {
    if (room == Room::must_be_there && !memory_.has_room_for(block.bytes)) return false;
    start_read(block, make_room(block.bytes, &block));
  }
  ahead_of_ = number_of(saved);
  block.was_loaded = true;
  block.copy = Copy::loading;
  h2d_bytes_ += block.bytes;
  if (block.transfer == Transfer::reading) {
    block.destination = destination;
  } else {
    start_copy(block, destination, block.memory);
  }
  read_ahead();
  return true;
}

// What is on nvme too gives its memory to those that are read ahead.
void TieredActivations::finish_load(SavedActivation saved) {
  Block& block = at(saved);
  if (std::byte* const destination = std::exchange(block.destination, nullptr)) {
    block.copy = Copy::none;
    settle_transfer(block);
    block.copy = Copy::loading;
    start_copy(block, destination, block.memory);
  }
  settle_copy(block);
  if (!block.is_on_disk || block.memory == nullptr || block.transfer != Transfer::none) return;
  forget_memory(block);
  read_ahead();
}

void TieredActivations::drop(SavedActivation saved) noexcept {
  const auto found = std::ranges::lower_bound(blocks_, saved, {}, [](const auto& b) { return b->number; });
  if (found == blocks_.end() || (*found)->number != saved) return;
  Block& block = **found;
  block.copied.wait_done();
  wait_for_transfer(block);
  block.copy = Copy::none;
  block.transfer = Transfer::none;
  block.destination = nullptr;
  if (block.memory != nullptr) forget_memory(block);
  if (disk_ != nullptr) disk_->give_back(block.units);
  remove(block);
  read_ahead();
}

// --- Room ---

// Evicts those that are wanted last until there is room.
std::byte* TieredActivations::make_room(uint64_t bytes, const Block* for_block) {
  while (true) {
    if (std::byte* const memory = memory_.take(bytes)) return memory;
    Block* const last = wanted_last(for_block);
    if (last == nullptr || (disk_ == nullptr && !last->is_on_disk)) refuse(for_block, bytes);
    evict(*last);
  }
}

TieredActivations::Block* TieredActivations::wanted_last(const Block* besides) {
  for (const std::unique_ptr<Block>& block : blocks_) {
    if (block.get() != besides && block->memory != nullptr && block->copy != Copy::loading)
      return block.get();
  }
  return nullptr;
}

void TieredActivations::evict(Block& block) {
  settle_copy(block);
  if (block.transfer != Transfer::none) settle_transfer(block);
  if (!block.is_on_disk) {
    start_write(block);
    settle_transfer(block);
  }
  forget_memory(block);
}

void TieredActivations::refuse(const Block* for_block, uint64_t bytes) const {
  const uint64_t cost = memory_.cost_bytes(bytes);
  // A drive takes the others. Without one all have to be there at once, and gaps may not fit.
  const uint64_t all = std::max(memory_.used_bytes() + cost, memory_.most_bytes() + 1);
  const uint64_t needed = budget_that_leaves_(round_up(disk_ != nullptr ? cost : all, HostArena::kAlignment));
  const uint64_t number = for_block != nullptr ? number_of(for_block->number) : last_number_ + 1;
  Wording advice = "set " + Option::host_budget + fmt::format(" to {} at least", needed);
  if (disk_ == nullptr) advice = advice + ", or " + Option::saved_activations + " to nvme";
  throw ShortageError({"cannot save in host memory", fmt::format("activation {}, of {} bytes", number, bytes),
                       fmt::format("the host budget leaves {} bytes to them, and {} are saved",
                                   memory_.most_bytes(), memory_.used_bytes()),
                       std::move(advice)},
                      {{"host", other_host_bytes_ + memory_.most_bytes(), needed}});
}

void TieredActivations::set_most(uint64_t bytes, uint64_t other_host_bytes) {
  if (bytes < memory_.most_bytes() && memory_.used_bytes() > 0)
    throw Error(ErrorKind::misuse, {"cannot lower the host budget of", "saved activations",
                                    fmt::format("{} bytes of them are saved", memory_.used_bytes()),
                                    "do it when no graph of a pass is left"});
  memory_.set_most(bytes);
  other_host_bytes_ = other_host_bytes;
}

// --- Waits ---

void TieredActivations::settle_copy(Block& block) {
  if (block.copy == Copy::none) return;
  const WaitTime waiting(wait_ns_);
  wait_done_watched(block.copied, watch_, kActivationCopy);
  block.copy = Copy::none;
  block.copied.wait();
}

void TieredActivations::wait_for_transfer(const Block& block) noexcept {
  if (block.transfer == Transfer::none) return;
  for (size_t u = 0; u < block.units.size(); ++u) block.transfers[u]->wait_done(watch_);
}

// A write that failed leaves the bytes in memory, and a read nothing there.
void TieredActivations::settle_transfer(Block& block) {
  {
    const WaitTime waiting(wait_ns_);
    wait_for_transfer(block);
  }
  const bool was_read = std::exchange(block.transfer, Transfer::none) == Transfer::reading;
  std::exception_ptr failure;
  for (size_t u = 0; u < block.units.size() && failure == nullptr; ++u)
    failure = block.transfers[u]->event().failure();
  if (failure == nullptr) {
    block.is_on_disk = true;
    return;
  }
  if (was_read) {
    forget_memory(block);
  } else {
    disk_->give_back(block.units);
  }
  std::rethrow_exception(failure);
}

// --- To nvme and back ---

TransferName TieredActivations::name_of(const Block& block) const {
  return {.what = kActivationCopy.what,
          .tag = transfer_tag(watch_.events(), TransferRole::activation, TransferReason::step,
                              ChunkId{short_number(block.number)})};
}

void TieredActivations::prepare_transfers(Block& block) {
  while (block.transfers.size() < block.units.size()) {
    block.transfers.push_back(std::make_unique<ChunkTransfer>());
    block.transfers.back()->prepare(1);
    block.transfers.back()->tell(name_saved, &block.number);
  }
}

void TieredActivations::start_write(Block& block) {
  disk_->take(SavedDisk::units_of(block.bytes), block.units);
  note_peaks();
  prepare_transfers(block);
  block.transfer = Transfer::writing;
  for (size_t u = 0; u < block.units.size(); ++u) {
    const SavedDisk::Unit& unit = block.units[u];
    write_bytes_ += SavedDisk::kUnitBytes;
    block.transfers[u]->start_write(*unit.store, unit.chunk, block.memory + u * SavedDisk::kUnitBytes,
                                    TransferPort(*io_, io::Priority::background), name_of(block), nullptr);
  }
}

void TieredActivations::start_read(Block& block, std::byte* memory) {
  block.memory = memory;
  note_peaks();
  block.transfer = Transfer::reading;
  for (size_t u = 0; u < block.units.size(); ++u) {
    const SavedDisk::Unit& unit = block.units[u];
    read_bytes_ += SavedDisk::kUnitBytes;
    block.transfers[u]->start_read(*unit.store, unit.chunk, memory + u * SavedDisk::kUnitBytes,
                                   TransferPort(*io_, io::Priority::critical), name_of(block));
  }
}

// Where the next one of this size finds no room, the one that leaves for it is written meanwhile. A drive
// that is full says so when the room is needed.
void TieredActivations::write_ahead(uint64_t bytes) noexcept {
  if (disk_ == nullptr || memory_.has_room_for(bytes)) return;
  Block* const last = wanted_last(nullptr);
  if (last == nullptr || last->is_on_disk || last->copy != Copy::none || last->transfer != Transfer::none)
    return;
  try {
    start_write(*last);
  } catch (const Error&) {
    last->transfer = Transfer::none;
  }
}

// Reads those below the last one that was asked for while there is room, and waits for none. A failure comes
// to whoever asks for it.
void TieredActivations::read_ahead() noexcept {
  if (ahead_of_ == 0 || disk_ == nullptr) return;
  const auto above = std::ranges::lower_bound(blocks_, SavedActivation{ahead_of_}, {},
                                              [](const auto& b) { return b->number; });
  for (auto next = above; next != blocks_.begin();) {
    Block& block = **--next;
    if (block.memory != nullptr || block.was_loaded) continue;
    if (!memory_.has_room_for(block.bytes)) return;
    try {
      start_read(block, memory_.take(block.bytes));
    } catch (const Error&) {
      return;  // the system has no memory: it is read when it is asked for
    }
  }
}

// --- Figures ---

SavedUse TieredActivations::use() const {
  return {.count = blocks_.size(),
          .host_bytes = memory_.used_bytes(),
          .host_peak_bytes = host_peak_bytes_,
          .host_held_bytes = memory_.held_bytes(),
          .host_most_bytes = memory_.most_bytes(),
          .nvme_bytes = disk_ != nullptr ? disk_->used_bytes() : 0,
          .nvme_peak_bytes = nvme_peak_bytes_,
          .file_bytes = disk_ != nullptr ? disk_->file_bytes() : 0};
}

void TieredActivations::begin_step() {
  step_ = {};
  step_start_.d2h_bytes = d2h_bytes_, step_start_.h2d_bytes = h2d_bytes_;
  step_start_.read_bytes = read_bytes_, step_start_.write_bytes = write_bytes_;
  note_peaks();  // of a graph that a program has kept
}

SavedStep TieredActivations::step() const {
  SavedStep step = step_;
  step.d2h_bytes = d2h_bytes_ - step_start_.d2h_bytes;
  step.h2d_bytes = h2d_bytes_ - step_start_.h2d_bytes;
  step.read_bytes = read_bytes_ - step_start_.read_bytes;
  step.write_bytes = write_bytes_ - step_start_.write_bytes;
  return step;
}

}  // namespace terrace
