#include <terrace/offload/gradients/gradient_place.h>

#include <algorithm>
#include <array>

namespace terrace {
namespace {

constexpr uint64_t kZeroElements = kTileElements;
alignas(64) constexpr std::array<std::byte, kZeroElements * sizeof(float)> kZeros{};

// The address of a chunk's first element, if a part of its gradient were where the whole one is. It is only
// ever used with the part's place added to it.
const std::byte* before(const std::byte* part, uint64_t bytes) {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(part) - bytes);
}

}  // namespace

// The padding lands first, because the landing of the part may complete the chunk. Its zeros are a gradient
// as that of the part is, so that they are in the sum of the group that opens with it.
void add_handed_part(GradientPlace& place, const GradientLanding& landing, const HandedPart& part,
                     uint64_t element_bytes) {
  const GradientRun& run = landing.runs.front();
  GradientRun padding = run, handed = run;
  handed.element_count = part.element_count;
  padding.first_element = handed.end();
  GradientLanding piece = landing;
  piece.ends = piece.completes = false;
  for (uint64_t left = run.element_count - part.element_count; left > 0; left -= padding.element_count) {
    padding.element_count = std::min(left, kZeroElements);
    piece.runs = {&padding, 1};
    place.add(piece, before(kZeros.data(), padding.first_element * element_bytes), true);
    padding.first_element += padding.element_count;
  }
  piece = landing;
  piece.runs = {&handed, 1};
  place.add(piece, before(part.gradient, run.first_element * element_bytes), true);
}

}  // namespace terrace
