// GradientSums: the sums of squares of a step's gradients, one per block of the own tiles, and which
// gradients are complete.
//
// The step thread changes it; the thread of the update may call is_complete() and forget().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/memory/space/chunk_shards.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

class GradientSums {
 public:
  // `memory` has room for a double per block of the trainable chunks and outlives this. With `dry` there are
  // no numbers, and all count as finite.
  GradientSums(const ChunkShards& shards, std::span<std::byte> memory, bool dry);

  // The sums of the chunk's blocks.
  std::span<double> of(ChunkId chunk) { return sums_.subspan(first_of(chunk), block_count(chunk)); }
  uint64_t block_count(ChunkId chunk) const { return first_[index_of(chunk) + 1] - first_of(chunk); }
  void set_zero(ChunkId chunk);

  bool dry() const { return dry_; }

  // Notes that the chunk's gradient of this step is complete in memory.
  void note_complete(ChunkId chunk) { complete_[index_of(chunk)].store(true, std::memory_order_release); }
  bool is_complete(ChunkId chunk) const { return complete_[index_of(chunk)].load(std::memory_order_acquire); }
  // Forgets a gradient because another one takes its place, or an update has used it.
  void forget(ChunkId chunk) { complete_[index_of(chunk)].store(false, std::memory_order_relaxed); }

  // True if every element of the chunk's gradient is finite. Its sums must be known.
  bool is_finite(ChunkId chunk) const;
  // The norm over the flat space, but for tensors that are counted elsewhere. All sums must be known.
  GradientNorm norm() const;

 private:
  uint64_t first_of(ChunkId chunk) const { return first_[index_of(chunk)]; }
  // Those that count for the norm.
  std::span<const double> counted(const Section& section) const;

  const FlatSpace& space_;
  const bool dry_;
  std::vector<uint64_t> first_;  // per chunk, and one more: index into sums_
  std::span<double> sums_;
  std::unique_ptr<std::atomic<bool>[]> complete_;  // per chunk
};

}  // namespace terrace
