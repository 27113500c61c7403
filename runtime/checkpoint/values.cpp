// The values of chosen tensors out of a checkpoint, one after another: see checkpoint.h.
#include <algorithm>
#include <array>
#include <vector>

#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/checkpoint_values.h>

namespace terrace {

void read_checkpoint_values(const std::filesystem::path& path, const FlatSpace& space,
                            FunctionRef<bool(TensorId)> wanted,
                            FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink) {
  CheckpointValues values(path, space);
  std::vector<TensorId> tensors;
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    if (wanted(TensorId{t})) tensors.push_back(TensorId{t});
  }
  // In the order of the files: each block is read once.
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](TensorId a, TensorId b) { return space.place(a).section < space.place(b).section; });
  std::array<float, kTileElements> run;
  for (const TensorId tensor : tensors) {
    const uint64_t elements = space.place(tensor).elements;
    for (uint64_t first = 0; first < elements; first += run.size()) {
      const std::span<float> part = std::span(run).first(std::min<uint64_t>(run.size(), elements - first));
      values.read(tensor, first, part);
      sink(tensor, first, part);
    }
  }
}

}  // namespace terrace
