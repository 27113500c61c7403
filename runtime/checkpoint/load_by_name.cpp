// Loading a checkpoint whose tensors lie in another order, or are cut in other ways, than those of this run.
#include <algorithm>
#include <vector>

#include <terrace/runtime/checkpoint/checkpoint_values.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>
#include <terrace/runtime/checkpoint/load_steps.h>

namespace terrace::checkpoint {
namespace {

// Of a tensor, that are read and written at a time.
constexpr uint64_t kPartElements = 16 * kTileElements;

}  // namespace

void load_by_name(const std::filesystem::path& folder, const Manifest& manifest, const FlatSpace& space,
                  Offloader& offloader) {
  CheckpointValues saved(folder);
  const std::vector<TensorSpec> mine = listed_tensors(space);
  const TensorMap tensors(manifest.tensors, mine);
  const auto read = [&](TensorId tensor, ValueKind what, uint64_t first, std::span<float> values) {
    if (tensors.is_padding(tensor)) {
      std::ranges::fill(values, 0.0f);
      return;
    }
    tensors.for_each_piece(tensor, first, values.size(),
                           [&](TensorId from, uint64_t begin, uint64_t at, uint64_t count) {
                             saved.read(from, what, begin, values.subspan(at, count));
                           });
  };
  offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    read(tensor, space.tensor(tensor).trainable ? ValueKind::master : ValueKind::parameter, first, values);
  });
  std::vector<float> part(kPartElements);
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const uint64_t elements = space.place(TensorId{t}).elements;
    const uint32_t moments = mine[t].trainable ? manifest.layout.moment_count : 0;
    for (uint64_t first = 0; first < elements; first += kPartElements) {
      const std::span<float> values = std::span(part).first(std::min(kPartElements, elements - first));
      for (uint32_t m = 0; m < moments; ++m) {
        const ValueKind what = m == 0 ? ValueKind::first_moment : ValueKind::second_moment;
        read(TensorId{t}, what, first, values);
        offloader.state().write_values(TensorId{t}, what, first, values);
      }
    }
  }
}

}  // namespace terrace::checkpoint
