#include <terrace/offload/gradients/gradient_place.h>

namespace terrace {
namespace {

// The address of a chunk's first element, if a part of its gradient were where the whole one is. It is only
// ever used with the part's place added to it.
const std::byte* before(const std::byte* part, uint64_t bytes) {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(part) - bytes);
}

}  // namespace

// The padding lands first, because the landing of the part may complete the chunk.
void add_handed_part(GradientPlace& place, const GradientLanding& landing, const HandedPart& part,
                     uint64_t element_bytes) {
  const GradientRun& run = landing.runs.front();
  GradientRun padding = run, handed = run;
  handed.element_count = part.element_count;
  padding.first_element = handed.end();
  padding.element_count -= part.element_count;
  padding.open_group = 0;  // no gradient of it has ever been in a group
  GradientLanding piece = landing;
  if (padding.element_count > 0) {
    piece.runs = {&padding, 1};
    piece.ends = piece.completes = false;
    place.add(piece, nullptr, true);
  }
  piece = landing;
  piece.runs = {&handed, 1};
  place.add(piece, before(part.gradient, run.first_element * element_bytes), true);
}

}  // namespace terrace
