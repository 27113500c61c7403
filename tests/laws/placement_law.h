// Law 1, written once: placement never changes numbers. A small model is trained through an Offloader under
// any combination of factors and compared, bit for bit, with the same training in plain vectors.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <terrace/comm/operations/communicator.h>

#include "laws/factors.h"

namespace terrace::laws {

// What a training leaves behind, as bits.
struct Outcome {
  std::vector<uint32_t> losses;          // fp32, one per micro-batch, then one of an evaluation
  std::vector<uint64_t> gradient_norms;  // fp64, one per step; 0 for one that overflowed
  std::vector<std::byte> parameters;     // all tensors in order
  std::vector<std::byte> records;        // all tiles in flat order
  bool operator==(const Outcome&) const = default;
};
// The first thing in which two outcomes differ; empty when they are equal.
std::string difference(const Outcome& expected, const Outcome& found);

class PlacementLaw {
 public:
  explicit PlacementLaw(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Trains with these factors; throws what the product throws.
  Outcome train(const Combination& combination);
  // The same numbers without any of the product's memory management. Made once per (precision, accumulation,
  // its type, clipping, model, optimizer, moments).
  const Outcome& reference(const Combination& combination);
  // From now on the steps of every training are recorded, and compared with what was counted.
  void record_steps() { records_steps_ = true; }
  // Of those trained: in which gradients were spilled.
  uint64_t spilling_runs() const { return spilling_runs_; }
  // In which parameters of other hosts were kept.
  uint64_t keeping_runs() const { return keeping_runs_; }
  // In which inputs that the program saves went to nvme.
  uint64_t writing_runs() const { return writing_runs_; }

 private:
  using ReferenceKey = std::array<uint8_t, 14>;
  Outcome train_rank(const Combination& combination, Communicator* ranks);

  std::filesystem::path folder_;
  std::map<ReferenceKey, Outcome> references_;
  uint64_t spilling_runs_ = 0;
  uint64_t keeping_runs_ = 0;
  uint64_t writing_runs_ = 0;
  bool records_steps_ = false;
};

}  // namespace terrace::laws
