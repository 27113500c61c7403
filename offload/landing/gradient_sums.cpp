#include <terrace/offload/landing/gradient_sums.h>

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

static_assert(kTileElements % kSumBlockElements == 0, "no block of a sum lies in two chunks");

GradientSums::GradientSums(const ChunkShards& shards, std::span<std::byte> memory, bool dry)
    : space_(shards.space()),
      dry_(dry),
      complete_(std::make_unique<std::atomic<bool>[]>(shards.space().chunk_count())) {
  first_.push_back(0);
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    const bool trainable = space_.section_of(ChunkId{c}).trainable;
    first_.push_back(first_.back() + (trainable ? shards.elements(ChunkId{c}) / kSumBlockElements : 0));
  }
  TERRACE_ASSERT(first_.back() * sizeof(double) <= memory.size(), "there is room for the sum of every block");
  sums_ = {reinterpret_cast<double*>(memory.data()), first_.back()};
}

void GradientSums::set_zero(ChunkId chunk) {
  if (!dry_) std::ranges::fill(of(chunk), 0.0);
}

bool GradientSums::is_finite(ChunkId chunk) const {
  GradientNorm norm;
  if (!dry_) norm.add_blocks(sums_.subspan(first_of(chunk), block_count(chunk)));
  return norm.finite();
}

std::span<const double> GradientSums::counted(const Section& section) const {
  if (!section.trainable || section.counted_elsewhere) return {};
  const uint64_t first = first_[section.first_chunk];
  return sums_.subspan(first, first_[section.first_chunk + section.chunk_count] - first);
}

GradientNorm GradientSums::norm() const {
  GradientNorm norm;
  if (dry_) return norm;
  for (const Section& section : space_.sections()) norm.add_blocks(counted(section));
  return norm;
}

}  // namespace terrace
