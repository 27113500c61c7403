#include <terrace/offload/gradients/borrowed_gradients.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

BorrowedGradients::BorrowedGradients(const FlatSpace& space, std::unique_ptr<GradientArithmetic> arithmetic,
                                     std::vector<std::byte*> landing_slots)
    : GradientStore(std::move(arithmetic), std::move(landing_slots)), space_(space), memory_(space) {
  landed_.reserve(space.chunk_count());
}

void BorrowedGradients::land(const GradientLanding&) {
  TERRACE_ASSERT(false, "no lease writes gradients that are borrowed");
}

// A tensor that was handed over in this step already is given its address again with each of its chunks.
void BorrowedGradients::begin(const GradientLanding& landing) {
  sums().forget(landing.chunk);
  if (!landing.begins) return;
  for (const TensorId tensor : space_.tensors_of(landing.chunk)) memory_.place(tensor, nullptr);
}

void BorrowedGradients::end(const GradientLanding& landing) {
  if (landing.ends) landed_.push_back(landing.chunk);
}

void BorrowedGradients::land_zero(const GradientLanding& landing) {
  begin(landing);
  end(landing);
}

void BorrowedGradients::land_from(const GradientLanding& landing, const HandedPart& part,
                                  const EvictionContext&) {
  begin(landing);
  const uint64_t before = part.first_element * bytes_of(type(landing.chunk));
  memory_.place(part.tensor, const_cast<std::byte*>(part.gradient) - before);
  end(landing);
}

void BorrowedGradients::finish_micro_batch(bool) {
  arithmetic_->take(landed_, [this](ChunkId chunk, uint64_t number, std::byte* scratch) {
    return tile(chunk, number, scratch);
  });
  landed_.clear();
}

// The program may have its memory back already.
void BorrowedGradients::give_up(bool) {
  landed_.clear();
}

std::byte* BorrowedGradients::gradient(ChunkId) {
  TERRACE_ASSERT(false, "borrowed gradients are read tile by tile");
  return nullptr;
}

const std::byte* BorrowedGradients::tile(ChunkId chunk, uint64_t tile, std::byte* scratch) {
  if (const std::byte* const there = memory_.find(chunk, tile * kTileElements, kTileElements)) return there;
  memory_.gather(chunk, tile * kTileElements, kTileElements, scratch);
  return scratch;
}

}  // namespace terrace
