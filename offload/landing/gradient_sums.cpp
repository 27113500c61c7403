#include <terrace/offload/landing/gradient_sums.h>

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

static_assert(kTileElements % kSumBlockElements == 0, "no block of a sum lies in two chunks");

GradientSums::GradientSums(const ChunkShards& shards, std::span<std::byte> memory, bool dry)
    : dry_(dry), complete_(std::make_unique<std::atomic<bool>[]>(shards.space().chunk_count())) {
  const FlatSpace& space = shards.space();
  first_.push_back(0);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const bool trainable = space.section_of(ChunkId{c}).trainable;
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

GradientNorm GradientSums::norm() const {
  GradientNorm norm;
  if (!dry_) norm.add_blocks(sums_);
  return norm;
}

}  // namespace terrace
