// TrialMemory: the memory in which the operations of a model are timed. It has the operations, an arena, and
// parameters and gradients of its own, in memory of the host or of a device. Its results are of no use. The
// object gives all memory back at its end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/model/transformer/model.h>

namespace terrace {

// The place of a trial.
struct TrialPlace {
  const ComputeDevice* compute = nullptr;    // null: the host
  uint64_t device_bytes = 0;                 // the most memory to take of a device
  ProductType products = ProductType::fp32;  // of the host
};

class TrialMemory {
 public:
  virtual ~TrialMemory() = default;

  virtual const Ops& ops() const = 0;
  // Waits until every queued operation is over.
  virtual void wait() = 0;
  StackArena& arena() { return *arena_; }
  const std::byte* parameter(TensorId tensor) const { return memory_of(tensor); }
  // `tensor` is trained.
  std::byte* gradient(TensorId tensor) const { return gradients_ + gradient_offsets_[index_of(tensor)]; }

 protected:
  std::byte* memory_of(TensorId tensor) const { return parameters_ + offsets_[index_of(tensor)]; }
  // The parts of the memory; the arena comes first.
  struct Shares {
    uint64_t work_bytes = 0;
    uint64_t parameter_bytes = 0;
    uint64_t gradient_bytes = 0;
    uint64_t all_bytes() const { return work_bytes + parameter_bytes + gradient_bytes; }
  };
  // Returns the best parts of `room_bytes`, or the least if that is more.
  static Shares shares_of(const std::vector<TensorSpec>& tensors, uint64_t work_bytes, uint64_t room_bytes);
  void use(std::span<std::byte> memory, const std::vector<TensorSpec>& tensors, const Shares& shares);

  friend uint64_t least_trial_bytes(const std::vector<TensorSpec>& tensors, uint64_t work_bytes);

 private:
  std::unique_ptr<StackArena> arena_;
  std::byte* parameters_ = nullptr;
  std::byte* gradients_ = nullptr;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> gradient_offsets_;
};

// Returns the least memory of a device for a trial with this work memory: tensors share memory there.
uint64_t least_trial_bytes(const std::vector<TensorSpec>& tensors, uint64_t work_bytes);

// Makes the memory and fills it with the first values of every tensor, as often as they fit. On a device each
// tensor has memory of its own if place.device_bytes are enough; they are no less than least_trial_bytes().
// `workers` outlive it.
std::unique_ptr<TrialMemory> make_trial_memory(const Model& model, const std::vector<TensorSpec>& tensors,
                                               uint64_t work_bytes, const TrialPlace& place,
                                               Workers& workers);

}  // namespace terrace
