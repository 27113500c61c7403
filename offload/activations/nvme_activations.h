// NvmeActivations: checkpointed activations that neither device nor host memory has room for. They lie on
// nvme between forward and backward, each block with its checksum, and pass through a few slots of host
// memory on the way there and back. No commit contains them.
//
// Slots are taken in turn on the way out; an entry that is still in its slot when it comes back is taken from
// there. On the way back the next entries are read ahead into unneeded slots, in the order of the dry run.
// The bytes that move depend on the sequence of calls alone.
//
// The step thread uses it; transfers to and from nvme run on the thread of `io`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/io_thread.h>
#include <terrace/base/event.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/lease/activation_store.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class NvmeActivations {
 public:
  struct Tiers {
    BlockStore& store;  // entry i is its chunk i
    io::IoThread& io;
    Device& device;
    StepWatch& watch;
  };
  // `memory` holds the slots, each of store.chunk_bytes() of an entry. `get_order` has every entry once, in
  // the order of their return. Memory and tiers outlive this object.
  NvmeActivations(std::span<std::byte> memory, std::vector<uint32_t> get_order, const Tiers& tiers);
  ~NvmeActivations();
  NvmeActivations(const NvmeActivations&) = delete;
  NvmeActivations& operator=(const NvmeActivations&) = delete;

  // These work as in ActivationStore.
  void start_put(uint32_t entry, std::span<const float> values);
  void start_get(uint32_t entry, std::span<float> values);
  void wait(uint32_t entry);

  // Bytes of requested transfers, counted at the request.
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t write_bytes() const { return write_bytes_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // rests: the slot has no copy under way; an entry that it holds was put here, or read.
  enum class Phase : uint8_t { rests, putting, getting };
  struct Slot {
    std::byte* memory = nullptr;
    uint32_t entry = kNone;
    Phase phase = Phase::rests;
    bool was_read = false;   // `transfer` read the entry from nvme
    Event copied;            // the copy from the device or to it
    ChunkTransfer transfer;  // the transfer from nvme or to it
  };

  Slot* slot_of(uint32_t entry);
  Slot* unused_slot();
  Slot& slot_for_get();
  void settle(Slot& slot);
  void read(Slot& slot, uint32_t entry);
  void read_ahead(uint32_t entry);
  void write(Slot& slot);
  WaitSubject disk_subject(const Slot& slot) const;
  TransferName name_of(ChunkId chunk) const;

  const Tiers tiers_;
  const uint32_t slot_count_;
  std::unique_ptr<Slot[]> slots_;
  uint32_t next_ = 0;                // the slot that the next entry is put into
  std::vector<uint32_t> get_order_;  // entries
  std::vector<uint32_t> get_turn_;   // by entry: its place in get_order_
  std::vector<uint64_t> put_bytes_;  // by entry; 0: nothing was put
  uint64_t d2h_bytes_ = 0;
  uint64_t h2d_bytes_ = 0;
  uint64_t read_bytes_ = 0;
  uint64_t write_bytes_ = 0;
};

}  // namespace terrace
