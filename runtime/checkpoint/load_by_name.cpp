// Loading a checkpoint whose tensors lie in another order, or are cut in other ways, than those of this run.
#include <algorithm>
#include <vector>

#include <terrace/runtime/checkpoint/checkpoint_values.h>
#include <terrace/runtime/checkpoint/load_steps.h>

namespace terrace::checkpoint {
namespace {

// Of a tensor, that are read and written at a time.
constexpr uint64_t kPartElements = 16 * kTileElements;

}  // namespace

void load_by_name(const std::filesystem::path& folder, const Manifest& manifest, const FlatSpace& space,
                  Offloader& offloader) {
  CheckpointValues saved(folder, space);
  offloader.state().initialise(
      [&](TensorId tensor, uint64_t first, std::span<float> values) { saved.read(tensor, first, values); });
  std::vector<float> part(kPartElements);
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const uint64_t elements = space.place(TensorId{t}).elements;
    const uint32_t moments = space.tensor(TensorId{t}).trainable ? manifest.layout.moment_count : 0;
    for (uint64_t first = 0; first < elements; first += kPartElements) {
      const std::span<float> values = std::span(part).first(std::min(kPartElements, elements - first));
      for (uint32_t m = 0; m < moments; ++m) {
        const ValueKind what = m == 0 ? ValueKind::first_moment : ValueKind::second_moment;
        saved.read(TensorId{t}, what, first, values);
        offloader.state().write_values(TensorId{t}, what, first, values);
      }
    }
  }
}

}  // namespace terrace::checkpoint
