// TieredActivations: the SavedActivations of an Offloader. They lie in host memory within a budget. Where
// that is full, and there is a drive, the one that was saved first is written there, since it is wanted last;
// one more is written ahead, so that the next one finds room. On the way back those below the last one that
// was asked for are read ahead into room that comes free. Each block on a drive has its checksum, and no
// commit contains it.
//
// Which bytes move depends on the sequence of calls alone. A failure leaves all others as they were. Only the
// step thread uses this; transfers to and from nvme run on the thread of `io`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <terrace/aio/io_thread.h>
#include <terrace/base/event.h>
#include <terrace/memory/device/device.h>
#include <terrace/offload/activations/saved_disk.h>
#include <terrace/offload/activations/saved_memory.h>
#include <terrace/offload/lease/activation_store.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class TieredActivations final : public SavedActivations {
 public:
  // `other_host_bytes` is what the run has of its host budget beside this. All references outlive this.
  struct Options {
    SavedMemory::Limits memory;
    uint64_t other_host_bytes = 0;
    // A host budget of the run that leaves so many bytes to them.
    std::function<uint64_t(uint64_t bytes)> budget_that_leaves;
  };
  // `disk` is null where nothing goes to nvme, and `io` is not used then.
  TieredActivations(const Options& options, Device& device, StepWatch& watch, Log& log,
                    std::unique_ptr<SavedDisk> disk, io::IoThread* io);
  ~TieredActivations() override;
  TieredActivations(const TieredActivations&) = delete;
  TieredActivations& operator=(const TieredActivations&) = delete;

  SavedActivation start_save(const std::byte* source, uint64_t bytes) override;
  void finish_save(SavedActivation saved) override;
  bool start_load(SavedActivation saved, std::byte* destination, Room room) override;
  void finish_load(SavedActivation saved) override;
  void drop(SavedActivation saved) noexcept override;
  SavedUse use() const override;
  SavedStep step() const override;
  // What step() is of begins.
  void begin_step();

  // Another host budget for them, between steps, at most the first one, beside `other_host_bytes`. Throws
  // Error(misuse) where it is less and some are saved.
  void set_most(uint64_t bytes, uint64_t other_host_bytes);
  // Bytes of requested transfers, counted at the request, and the time of waiting for them.
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t write_bytes() const { return write_bytes_; }
  uint64_t wait_ns() const { return wait_ns_; }

 private:
  enum class Copy : uint8_t { none, saving, loading };
  enum class Transfer : uint8_t { none, writing, reading };
  struct Block {
    SavedActivation number{};
    uint64_t bytes = 0;
    std::byte* memory = nullptr;  // null: it is on nvme alone
    Copy copy = Copy::none;
    std::byte* destination = nullptr;  // of a load whose copy waits for nvme
    Event copied;
    bool was_loaded = false;
    Transfer transfer = Transfer::none;
    bool is_on_disk = false;  // all of it
    std::vector<SavedDisk::Unit> units;
    std::vector<std::unique_ptr<ChunkTransfer>> transfers;  // one for each unit, or more
  };

  Block& at(SavedActivation saved);
  Block& add(uint64_t bytes);
  void remove(const Block& block) noexcept;
  std::byte* make_room(uint64_t bytes, const Block* for_block);
  Block* wanted_last(const Block* besides);
  void evict(Block& block);
  [[noreturn]] void refuse(const Block* for_block, uint64_t bytes) const;
  void start_copy(Block& block, std::byte* to, const std::byte* from);
  void settle_copy(Block& block);
  void settle_transfer(Block& block);
  void wait_for_transfer(const Block& block) noexcept;
  void prepare_transfers(Block& block);
  void start_write(Block& block);
  void start_read(Block& block, std::byte* memory);
  void write_ahead(uint64_t bytes) noexcept;
  void read_ahead() noexcept;
  void forget_memory(Block& block);
  TransferName name_of(const Block& block) const;
  void note_peaks();

  StepWatch& watch_;
  Device& device_;
  SavedMemory memory_;
  const std::unique_ptr<SavedDisk> disk_;
  io::IoThread* const io_;
  uint64_t other_host_bytes_;
  const std::function<uint64_t(uint64_t bytes)> budget_that_leaves_;
  std::vector<std::unique_ptr<Block>> blocks_;  // by number
  std::vector<std::unique_ptr<Block>> unused_;  // for later ones, so that a warm step allocates nothing
  uint64_t last_number_ = 0;
  uint64_t ahead_of_ = 0;    // the last one that was asked for; 0: saved since then, nothing is read ahead
  uint64_t cost_bytes_ = 0;  // of all, wherever they are
  uint64_t host_peak_bytes_ = 0;
  uint64_t nvme_peak_bytes_ = 0;
  SavedStep step_;        // its peaks
  SavedStep step_start_;  // what had moved before it
  uint64_t d2h_bytes_ = 0;
  uint64_t h2d_bytes_ = 0;
  uint64_t read_bytes_ = 0;
  uint64_t write_bytes_ = 0;
  uint64_t wait_ns_ = 0;
};

}  // namespace terrace
