#include <terrace/offload/activations/nvme_activations.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

// A failure of the file system names file and offset; this adds whose bytes they are.
void name_entry(void*, ChunkTransfer& transfer, const io::Completion&, std::exception_ptr& failure) noexcept {
  failure = reworded(failure, [&](const Error& error) {
    ErrorParts parts = error.parts();
    parts.reason = fmt::format("activation checkpoint {}: {}", index_of(transfer.chunk()), parts.reason);
    return Error(error.kind(), std::move(parts));
  });
}

uint32_t slots_in(std::span<std::byte> memory, const BlockStore& store) {
  return static_cast<uint32_t>(memory.size() / store.chunk_bytes(ChunkId{0}));
}

}  // namespace

NvmeActivations::NvmeActivations(std::span<std::byte> memory, std::vector<uint32_t> get_order,
                                 const Tiers& tiers)
    : tiers_(tiers),
      slot_count_(slots_in(memory, tiers.store)),
      slots_(std::make_unique<Slot[]>(slot_count_)),
      get_order_(std::move(get_order)),
      get_turn_(get_order_.size()),
      put_bytes_(get_order_.size()) {
  TERRACE_ASSERT(slot_count_ >= 2, "one entry moves while the next one is on its way");
  for (uint32_t turn = 0; turn < get_order_.size(); ++turn) get_turn_[get_order_[turn]] = turn;
  const uint64_t slot_bytes = tiers.store.chunk_bytes(ChunkId{0});
  for (uint32_t s = 0; s < slot_count_; ++s) {
    slots_[s].memory = memory.data() + s * slot_bytes;
    slots_[s].transfer.prepare(tiers.store.block_count(ChunkId{0}));
    slots_[s].transfer.tell(name_entry, nullptr);
  }
}

NvmeActivations::~NvmeActivations() {
  for (uint32_t s = 0; s < slot_count_; ++s) slots_[s].copied.wait_done();
}

NvmeActivations::Slot* NvmeActivations::slot_of(uint32_t entry) {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    if (slots_[s].entry == entry) return &slots_[s];
  }
  return nullptr;
}

NvmeActivations::Slot* NvmeActivations::unused_slot() {
  return slot_of(kNone);
}

// The entry that is wanted back last gives up its slot.
NvmeActivations::Slot& NvmeActivations::slot_for_get() {
  if (Slot* const unused = unused_slot()) return *unused;
  Slot* last = nullptr;
  for (uint32_t s = 0; s < slot_count_; ++s) {
    Slot& slot = slots_[s];
    if (slot.phase != Phase::rests) continue;
    if (last == nullptr || get_turn_[slot.entry] > get_turn_[last->entry]) last = &slot;
  }
  TERRACE_ASSERT(last != nullptr, "an activation is waited for before the next but one is asked for");
  return *last;
}

// Entries are no chunks of the flat space, so the subject names none.
WaitSubject NvmeActivations::disk_subject(const Slot& slot) const {
  WaitSubject subject = slot.transfer.subject();
  subject.chunk.reset();
  return subject;
}

// Makes the slot's memory free for another entry. Throws the failure of its last transfer.
void NvmeActivations::settle(Slot& slot) {
  slot.copied.wait();  // the copy may be of a micro-batch that was given up
  const Event& transferred = slot.transfer.event();
  if (!transferred.done()) wait_done_watched(transferred, tiers_.watch, disk_subject(slot));
  transferred.wait();
  slot.entry = kNone;
  slot.phase = Phase::rests;
  slot.was_read = false;
}

void NvmeActivations::start_put(uint32_t entry, std::span<const float> values) {
  const uint64_t bytes = values.size_bytes();
  TERRACE_ASSERT(bytes <= tiers_.store.chunk_bytes(ChunkId{entry}),
                 fmt::format("activation {} has {} bytes, {} were planned", entry, bytes,
                             tiers_.store.chunk_bytes(ChunkId{entry})));
  if (Slot* const old = slot_of(entry)) settle(*old);  // the entry may be of a micro-batch that was given up
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slot_count_;
  settle(slot);
  slot.entry = entry;
  slot.phase = Phase::putting;
  put_bytes_[entry] = bytes;
  d2h_bytes_ += bytes;
  slot.copied.begin();
  tiers_.device.copy_work_to_host(
      slot.memory, reinterpret_cast<const std::byte*>(values.data()), bytes, nullptr, slot.copied,
      from_device_note(tiers_.watch.events(), TransferRole::activation, TransferReason::step, entry));
}

void NvmeActivations::start_get(uint32_t entry, std::span<float> values) {
  TERRACE_ASSERT(values.size_bytes() <= put_bytes_[entry],
                 fmt::format("activation {} has {} bytes, {} are asked for", entry, put_bytes_[entry],
                             values.size_bytes()));
  Slot* slot = slot_of(entry);
  if (slot == nullptr) {
    slot = &slot_for_get();
    read(*slot, entry);
  }
  TERRACE_ASSERT(slot->phase == Phase::rests, fmt::format("activation {} is still on its way", entry));
  slot->phase = Phase::getting;
  h2d_bytes_ += values.size_bytes();
  slot->copied.begin();
  tiers_.device.copy_to_work(
      reinterpret_cast<std::byte*>(values.data()), slot->memory, values.size_bytes(),
      slot->was_read ? &slot->transfer.event() : nullptr, slot->copied,
      to_device_note(tiers_.watch.events(), TransferRole::activation, TransferReason::step, entry));
  read_ahead(entry);
}

// Reads the next entries into unused slots, and waits for none.
void NvmeActivations::read_ahead(uint32_t entry) {
  for (size_t turn = get_turn_[entry] + 1; turn < get_order_.size(); ++turn) {
    if (slot_of(get_order_[turn]) != nullptr) continue;
    Slot* const slot = unused_slot();
    if (slot == nullptr) return;
    read(*slot, get_order_[turn]);
  }
}

void NvmeActivations::wait(uint32_t entry) {
  Slot* const slot = slot_of(entry);
  TERRACE_ASSERT(slot != nullptr && slot->phase != Phase::rests,
                 fmt::format("activation {} is not on its way", entry));
  if (!slot->copied.done()) {
    const bool from_disk = slot->was_read && !slot->transfer.event().done();
    wait_done_watched(slot->copied, tiers_.watch, from_disk ? disk_subject(*slot) : kActivationCopy);
  }
  slot->copied.wait();
  const bool was_put = slot->phase == Phase::putting;
  slot->phase = Phase::rests;
  if (was_put) {
    write(*slot);
  } else {
    slot->entry = kNone;
  }
}

void NvmeActivations::read(Slot& slot, uint32_t entry) {
  settle(slot);
  slot.entry = entry;
  slot.was_read = true;
  const ChunkId chunk{entry};
  read_bytes_ += tiers_.store.chunk_bytes(chunk);
  slot.transfer.start_read(tiers_.store, chunk, slot.memory, TransferPort(tiers_.io, io::Priority::critical),
                           name_of(chunk));
}

void NvmeActivations::write(Slot& slot) {
  const ChunkId chunk{slot.entry};
  write_bytes_ += tiers_.store.chunk_bytes(chunk);
  slot.transfer.start_write(tiers_.store, chunk, slot.memory,
                            TransferPort(tiers_.io, io::Priority::background), name_of(chunk), nullptr);
}

TransferName NvmeActivations::name_of(ChunkId chunk) const {
  return {.what = kActivationCopy.what,
          .tag = transfer_tag(tiers_.watch.events(), TransferRole::activation, TransferReason::step, chunk)};
}

}  // namespace terrace
