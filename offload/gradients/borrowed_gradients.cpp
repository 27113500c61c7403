#include <terrace/offload/gradients/borrowed_gradients.h>

#include <terrace/base/assert.h>

namespace terrace {

BorrowedGradients::BorrowedGradients(const FlatSpace& space, GradientArithmetic& arithmetic)
    : space_(space), arithmetic_(arithmetic), memory_(space) {
  landed_.reserve(space.chunk_count());
}

void BorrowedGradients::add(const GradientLanding&, const std::byte*, bool) {
  TERRACE_ASSERT(false, "no lease writes gradients that are borrowed");
}

// A tensor that was handed over in this step already is given its address again with each of its chunks.
void BorrowedGradients::begin(const GradientLanding& landing) {
  arithmetic_.sums().forget(landing.chunk);
  if (!landing.begins) return;
  for (const TensorId tensor : space_.tensors_of(landing.chunk)) memory_.place(tensor, nullptr);
}

void BorrowedGradients::end(const GradientLanding& landing) {
  if (landing.ends) landed_.push_back(landing.chunk);
}

void BorrowedGradients::add_zeros(const GradientLanding& landing, const GradientLanding&, Finish) {
  begin(landing);
  end(landing);
}

bool BorrowedGradients::take(const GradientLanding& landing, const HandedPart& part, const EvictionContext&,
                             Finish) {
  begin(landing);
  const uint64_t before = part.first_element * bytes_of(type(landing.chunk));
  memory_.place(part.tensor, const_cast<std::byte*>(part.gradient) - before);
  end(landing);
  return false;
}

void BorrowedGradients::finish(bool) {
  arithmetic_.take(landed_, [this](ChunkId chunk, uint64_t number, std::byte* scratch) {
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
