// The values of chosen tensors out of a checkpoint, without anything that trains: see checkpoint.h.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/internal/block_file.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/load_steps.h>

namespace terrace {
namespace {

using checkpoint::BlockReader;
using checkpoint::Manifest;

uint64_t states_bytes_of(const FlatSpace& space) {
  uint64_t tiles = 0;
  for (const Section& section : space.sections()) {
    if (section.trainable) tiles += section.elements / kTileElements;
  }
  return tiles * kRecordTileBytes;
}

uint64_t frozen_bytes_of(const FlatSpace& space) {
  uint64_t bytes = 0;
  for (const Section& section : space.sections()) {
    if (!section.trainable) bytes += section.elements * bytes_of(section.type);
  }
  return bytes;
}

// The tensors of one section, of which tile after tile is shown to a sink.
class SectionWalk {
 public:
  SectionWalk(const FlatSpace& space, uint32_t section, FunctionRef<bool(TensorId)> wanted) : space_(space) {
    for (uint32_t t = 0; t < space.tensor_count(); ++t) {
      if (space.place(TensorId{t}).section == section && wanted(TensorId{t})) tensors_.push_back(TensorId{t});
    }
  }

  bool any() const { return !tensors_.empty(); }

  void show(uint64_t first_element, std::span<const float> tile,
            FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink) {
    for (; next_ < tensors_.size(); ++next_) {
      const TensorPlace& place = space_.place(tensors_[next_]);
      const uint64_t end = place.first_element + place.elements;
      const uint64_t first = std::max(first_element, place.first_element);
      const uint64_t last = std::min(first_element + tile.size(), end);
      if (first < last) {
        sink(tensors_[next_], first - place.first_element, tile.subspan(first - first_element, last - first));
      }
      if (end > first_element + tile.size()) return;  // goes on in a later tile, or begins there
    }
  }

 private:
  const FlatSpace& space_;
  std::vector<TensorId> tensors_;
  size_t next_ = 0;
};

}  // namespace

void read_checkpoint_values(const std::filesystem::path& path, const FlatSpace& space,
                            FunctionRef<bool(TensorId)> wanted,
                            FunctionRef<void(TensorId, uint64_t, std::span<const float>)> sink) {
  const std::filesystem::path folder = checkpoint::find_checkpoint(path);
  const Manifest manifest = checkpoint::read_manifest_of(folder);
  checkpoint::require_same_tensors(folder, manifest, "the architecture that it names", space,
                                   states_bytes_of(space), frozen_bytes_of(space));
  BlockReader states(folder / checkpoint::kStatesName, manifest.states);
  std::optional<BlockReader> frozen;
  if (manifest.frozen.bytes > 0) frozen.emplace(folder / checkpoint::kFrozenName, manifest.frozen);
  std::vector<std::byte> bytes(kRecordTileBytes);
  std::array<float, kTileElements> values;
  for (uint32_t s = 0; s < space.sections().size(); ++s) {
    const Section& section = space.sections()[s];
    SectionWalk walk(space, s, wanted);
    BlockReader& reader = section.trainable ? states : *frozen;
    const uint64_t tile_bytes = section.trainable ? kRecordTileBytes : kTileElements * bytes_of(section.type);
    if (!walk.any()) {
      reader.skip(section.elements / kTileElements * tile_bytes);
      continue;
    }
    for (uint64_t first = 0; first < section.elements; first += kTileElements) {
      const std::span<std::byte> tile = std::span(bytes).first(tile_bytes);
      reader.read(tile);
      convert_to_float(best_instruction_set(), tile.data(), section.trainable ? DataType::fp32 : section.type,
                       values.data(), values.size());
      walk.show(first, values, sink);
    }
  }
}

}  // namespace terrace
