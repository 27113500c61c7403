// GradientSums: the sums of squares of a step's gradients, one per block of the flat space, and which
// gradients are complete. The norm is made of the sums in the order of the flat space, so when a gradient
// lands makes no difference to it.
//
// The step thread changes it; is_complete() may be called, and forget() too, by the thread of the update.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/memory/space/flat_space.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

class GradientSums {
 public:
  // `memory` has room for a double per block of the trainable chunks and outlives this. `dry`: there are no
  // numbers, and all are finite.
  GradientSums(const FlatSpace& space, std::span<std::byte> memory, bool dry);

  // The sums of the chunk's blocks.
  std::span<double> of(ChunkId chunk) { return sums_.subspan(first_of(chunk), count_of(chunk)); }
  void set_zero(ChunkId chunk);

  bool dry() const { return dry_; }

  // The chunk's gradient of this step is complete where it rests in memory.
  void note_complete(ChunkId chunk) { complete_[index_of(chunk)].store(true, std::memory_order_release); }
  bool is_complete(ChunkId chunk) const { return complete_[index_of(chunk)].load(std::memory_order_acquire); }
  // Another gradient takes its place, or an update has used it.
  void forget(ChunkId chunk) { complete_[index_of(chunk)].store(false, std::memory_order_relaxed); }

  // Whether every element of the chunk's gradient is finite, of a gradient whose sums are known.
  bool is_finite(ChunkId chunk) const;
  // Over the whole flat space; all sums are known.
  GradientNorm norm() const;

 private:
  uint64_t first_of(ChunkId chunk) const { return first_[index_of(chunk)]; }
  uint64_t count_of(ChunkId chunk) const { return first_[index_of(chunk) + 1] - first_of(chunk); }

  const bool dry_;
  std::vector<uint64_t> first_;  // per chunk, and one more entry: of sums_
  std::span<double> sums_;
  std::unique_ptr<std::atomic<bool>[]> complete_;  // per chunk
};

}  // namespace terrace
