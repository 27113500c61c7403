// ActivationStore: where the inputs of checkpointed layers rest between forward and backward when they do not
// stay in device memory. A model puts each input away while the layer computes with it and gets it back while
// the layer above runs backward. The model never knows where the bytes go.
//
// Entries are numbered from 0 within a micro-batch. One thread at a time uses a store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class ActivationStore {
 public:
  virtual ~ActivationStore() = default;

  // Start the copy of `values` away, or back. Until wait(index), `values` must stay where they are: unchanged
  // after start_put(), untouched after start_get(). An entry is read back at most as long as it was put.
  virtual void start_put(uint32_t index, std::span<const float> values) = 0;
  virtual void start_get(uint32_t index, std::span<float> values) = 0;
  // Waits until the entry's copy is over; throws its failure.
  virtual void wait(uint32_t index) = 0;
};

// ActivationRecorder moves nothing: in a dry run it learns how much room a micro-batch needs (or all
// micro-batches, where they run together) and in which order entries come back.
class ActivationRecorder final : public ActivationStore {
 public:
  void start_put(uint32_t index, std::span<const float> values) override;
  void start_get(uint32_t index, std::span<float>) override;
  void wait(uint32_t) override {}

  uint32_t entry_count() const { return entry_count_; }
  uint64_t entry_bytes() const { return entry_bytes_; }  // of the largest entry
  // Every entry once, in the order of its return.
  std::span<const uint32_t> get_order() const { return get_order_; }

 private:
  uint32_t entry_count_ = 0;
  uint64_t entry_bytes_ = 0;
  std::vector<uint32_t> get_order_;
};

// SavedActivations: activations of a program that makes them itself, between forward and backward. Neither
// how many there are nor their sizes are known beforehand. Each is saved once, and comes back as often as it
// is asked for until it is dropped, mostly in the reverse of the order in which they were saved. One thread
// at a time uses it.
enum class SavedActivation : uint64_t {};  // counts from 1

struct SavedUse {
  uint64_t count = 0;            // of those that are saved
  uint64_t host_bytes = 0;       // that they take of the host budget now
  uint64_t host_peak_bytes = 0;  // and took at most
  uint64_t host_held_bytes = 0;  // of the system's memory, which stays for later ones
  uint64_t host_most_bytes = 0;  // the budget
  uint64_t nvme_bytes = 0;       // on drives now
  uint64_t nvme_peak_bytes = 0;
  uint64_t file_bytes = 0;  // of the files there
};

// Of a step: of the one that is open, or else of the last one.
struct SavedStep {
  uint64_t wanted_bytes = 0;  // of host memory, by all that were there at once, wherever they were
  uint64_t host_bytes = 0;    // that they took of the host budget at most
  uint64_t nvme_bytes = 0;    // and on drives
  // Bytes of requested transfers.
  uint64_t d2h_bytes = 0;
  uint64_t h2d_bytes = 0;
  uint64_t read_bytes = 0;
  uint64_t write_bytes = 0;
};

class SavedActivations {
 public:
  virtual ~SavedActivations() = default;

  // Starts the copy of bytes from memory of the program that operations reach; it stays as it is until
  // finish_save(). Throws ShortageError where there is no room, with the least host budget that does for
  // those that are saved and this one, Error(capacity) where a drive has none, and Error(io) where it does
  // not take one.
  virtual SavedActivation start_save(const std::byte* source, uint64_t bytes) = 0;
  // Waits for that copy. Throws its failure.
  virtual void finish_save(SavedActivation saved) = 0;
  // Starts the way back to memory of the program, which is left alone until finish_load(). With
  // Room::must_be_there it returns false, and starts nothing, where others would have to make room.
  enum class Room : uint8_t { is_made, must_be_there };
  virtual bool start_load(SavedActivation saved, std::byte* destination, Room room) = 0;
  // Throws Error(io), or Error(corrupt) for bytes that are not those that were written.
  virtual void finish_load(SavedActivation saved) = 0;
  // Forgets one, whatever of it is on its way.
  virtual void drop(SavedActivation saved) noexcept = 0;
  virtual SavedUse use() const = 0;
  virtual SavedStep step() const = 0;
};

// The subject of a wait for the copy of an activation.
inline constexpr WaitSubject kActivationCopy = {
    "checkpointed activations", "device <-> host", TimeCause::device_copy, std::nullopt, nullptr, {}};

// HostActivations keeps every entry in its own `entry_bytes` of host `memory`. `memory` and the device
// outlive the store.
class HostActivations final : public ActivationStore {
 public:
  HostActivations(std::span<std::byte> memory, uint64_t entry_bytes, Device& device, StepWatch& watch);
  ~HostActivations() override;

  void start_put(uint32_t index, std::span<const float> values) override;
  void start_get(uint32_t index, std::span<float> values) override;
  void wait(uint32_t index) override;

  // Bytes of requested copies: away from the device, and back.
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  uint64_t h2d_bytes() const { return h2d_bytes_; }

 private:
  struct Entry {
    std::byte* memory = nullptr;
    uint64_t bytes = 0;  // length of the put; 0: nothing was put
    Event moved;
  };
  Entry& entry(uint32_t index);

  Device& device_;
  StepWatch& watch_;
  uint64_t entry_bytes_;
  uint32_t entry_count_;
  std::unique_ptr<Entry[]> entries_;
  uint64_t d2h_bytes_ = 0;
  uint64_t h2d_bytes_ = 0;
};

}  // namespace terrace
