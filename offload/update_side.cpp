#include <terrace/offload/update_side.h>

namespace terrace {

std::vector<bool> updated_on_device(const FlatSpace& space, const OffloadOptions& options) {
  std::vector<bool> on_device(space.chunk_count(), false);
  if (options.states == Placement::none) return on_device;
  double all = 0;   // elements so far,
  double here = 0;  // and those of the processor
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (!space.section_of(ChunkId{c}).trainable) continue;
    const auto elements = static_cast<double>(space.chunk(ChunkId{c}).elements);
    all += elements;
    on_device[c] = options.processor_share * all - here < elements / 2;
    if (!on_device[c]) here += elements;
  }
  return on_device;
}

}  // namespace terrace
