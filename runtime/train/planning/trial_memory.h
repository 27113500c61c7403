// TrialMemory: what a model is tried on to take the times of its operations: the operations, an arena, and
// parameters and gradients that nobody else has, in memory of the host or of a device. What is computed there
// is of no use to anybody. All of it is given back with the object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/runtime/model/compute/compute_device.h>
#include <terrace/runtime/model/transformer/model.h>

namespace terrace {

// Where a model is tried.
struct TrialPlace {
  const ComputeDevice* compute = nullptr;  // null: the host
  uint64_t device_bytes = 0;               // the most that is taken of a device
};

class TrialMemory {
 public:
  virtual ~TrialMemory() = default;

  virtual const Ops& ops() const = 0;
  // Until every operation that was asked for is over.
  virtual void wait() = 0;
  StackArena& arena() { return *arena_; }
  const std::byte* parameter(TensorId tensor) const { return memory_of(tensor); }
  // Of a tensor that is trained.
  std::byte* gradient(TensorId tensor) const { return gradients_ + gradient_offsets_[index_of(tensor)]; }

 protected:
  std::byte* memory_of(TensorId tensor) const { return parameters_ + offsets_[index_of(tensor)]; }
  // Takes what `shares` says of memory in which the arena comes first.
  struct Shares {
    uint64_t work_bytes = 0;
    uint64_t parameter_bytes = 0;
    uint64_t gradient_bytes = 0;
    uint64_t all_bytes() const { return work_bytes + parameter_bytes + gradient_bytes; }
  };
  // What is best of `room_bytes`, or the least where that is more.
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

// The least memory of a device that a trial with so much work memory does with: tensors share memory there.
uint64_t least_trial_bytes(const std::vector<TensorSpec>& tensors, uint64_t work_bytes);

// Filled with the first values of every tensor, as often as they fit. On a device each tensor has memory of
// its own where place.device_bytes, which are no less than least_trial_bytes(), are enough for that.
// `workers` outlive it.
std::unique_ptr<TrialMemory> make_trial_memory(const Model& model, const std::vector<TensorSpec>& tensors,
                                               uint64_t work_bytes, const TrialPlace& place,
                                               Workers& workers);

}  // namespace terrace
