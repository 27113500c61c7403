#include <terrace/offload/nvme_activations.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

// A failure of the file system names file and offset; this one says whose bytes they are.
Error with_entry(const Error& failure, uint32_t entry) {
  ErrorParts parts = failure.parts();
  parts.reason = fmt::format("activation checkpoint {}: {}", entry, parts.reason);
  return Error(failure.kind(), std::move(parts));
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
    Slot& slot = slots_[s];
    slot.memory = memory.data() + s * slot_bytes;
    slot.blocks.resize(tiers.store.block_count(ChunkId{0}));
    for (uint32_t b = 0; b < slot.blocks.size(); ++b) {
      slot.blocks[b].owner = this;
      slot.blocks[b].slot = &slot;
      slot.blocks[b].number = b;
    }
  }
}

NvmeActivations::~NvmeActivations() {
  for (uint32_t s = 0; s < slot_count_; ++s) {
    slots_[s].copied.wait_done();
    slots_[s].transfer.wait_done();
  }
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

// What leaves is wanted back after everything else that is here.
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

WaitSubject NvmeActivations::disk_subject(const Slot& slot) const {
  const io::Request& request = slot.blocks.front().request;
  const bool reads = request.kind == io::OpKind::read;
  return {"checkpointed activations",
          reads ? "nvme -> host" : "host -> nvme",
          reads ? TimeCause::read : TimeCause::write,
          std::nullopt,
          &request,
          tiers_.store.path_of(request)};
}

// Its memory may be used anew. Throws what its last transfer failed with.
void NvmeActivations::settle(Slot& slot) {
  slot.copied.wait();  // of a micro-batch that was given up
  if (!slot.transfer.done()) wait_done_watched(slot.transfer, tiers_.watch, disk_subject(slot));
  slot.transfer.wait();
  slot.entry = kNone;
  slot.phase = Phase::rests;
  slot.was_read = false;
}

void NvmeActivations::start_put(uint32_t entry, std::span<const float> values) {
  const uint64_t bytes = values.size_bytes();
  TERRACE_ASSERT(bytes <= tiers_.store.chunk_bytes(ChunkId{entry}),
                 fmt::format("activation {} has {} bytes, {} were planned", entry, bytes,
                             tiers_.store.chunk_bytes(ChunkId{entry})));
  if (Slot* const old = slot_of(entry)) settle(*old);  // of a micro-batch that was given up
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
      slot->was_read ? &slot->transfer : nullptr, slot->copied,
      to_device_note(tiers_.watch.events(), TransferRole::activation, TransferReason::step, entry));
  read_ahead(entry);
}

// Into what is unused, never waiting for anything but that.
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
    const bool from_disk = slot->was_read && !slot->transfer.done();
    wait_done_watched(slot->copied, tiers_.watch,
                      from_disk ? disk_subject(*slot)
                                : WaitSubject{"checkpointed activations",
                                              "device <-> host",
                                              TimeCause::device_copy,
                                              std::nullopt,
                                              nullptr,
                                              {}});
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
  slot.transfer.begin(static_cast<uint32_t>(slot.blocks.size()));
  std::byte* to = slot.memory;
  for (Block& block : slot.blocks) {
    const uint64_t bytes = tiers_.store.block_bytes(chunk, block.number);
    block.request = tiers_.store.read_request(chunk, block.number, {to, bytes});
    block.request.on_complete = &NvmeActivations::on_read;
    block.request.context = &block;
    block.request.tag =
        transfer_tag(tiers_.watch.events(), TransferRole::activation, TransferReason::step, chunk);
    to += bytes;
    read_bytes_ += bytes;
    tiers_.io.submit(block.request, io::Priority::critical);
  }
}

void NvmeActivations::on_read(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  std::exception_ptr failure;
  try {
    block.owner->tiers_.store.end_read(ChunkId{block.slot->entry}, block.number, block.request, completion);
  } catch (const Error& error) {
    failure = std::make_exception_ptr(with_entry(error, block.slot->entry));
  } catch (...) {
    failure = std::current_exception();
  }
  block.slot->transfer.complete_one(failure);
}

void NvmeActivations::write(Slot& slot) {
  const ChunkId chunk{slot.entry};
  slot.transfer.begin(static_cast<uint32_t>(slot.blocks.size()));
  const std::byte* from = slot.memory;
  for (Block& block : slot.blocks) {
    const uint64_t bytes = tiers_.store.block_bytes(chunk, block.number);
    const bool begun = tiers_.store.begin_write(chunk, block.number, {from, bytes}, block.write);
    TERRACE_ASSERT(begun, "a block that is written in place has a slot");
    block.request = block.write.request;
    block.request.on_complete = &NvmeActivations::on_written;
    block.request.context = &block;
    block.request.tag =
        transfer_tag(tiers_.watch.events(), TransferRole::activation, TransferReason::step, chunk);
    from += bytes;
    write_bytes_ += bytes;
    tiers_.io.submit(block.request, io::Priority::background);
  }
}

void NvmeActivations::on_written(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  BlockStore& store = block.owner->tiers_.store;
  std::exception_ptr failure;
  if (store.end_write(block.write, completion) != BlockStore::WriteEnd::done) {  // in place: no other slot
    failure = std::make_exception_ptr(
        with_entry(store.io_error(block.request, completion), index_of(block.write.chunk)));
  }
  block.slot->transfer.complete_one(failure);
}

}  // namespace terrace
