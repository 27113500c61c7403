#include <terrace/runtime/checkpoint/checkpoint_values.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/load_steps.h>
#include <terrace/runtime/saved/block_file.h>

namespace terrace {
namespace {

using checkpoint::Manifest;
using saved::BlockReader;

// Each worker walks through a part of the tensors of its own.
constexpr size_t kReaderCount = 16;

// Where the elements of a section lie in their file.
struct SectionPlace {
  uint64_t first_byte = 0;
  uint64_t tile_bytes = 0;   // from one tile to the next
  uint64_t value_bytes = 0;  // of an element
};

}  // namespace

struct CheckpointValues::Source {
  const FlatSpace& space;
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<SectionPlace> sections;
  std::mutex mutex;
  // The reader used last comes first; each holds one block.
  std::list<BlockReader> states;
  std::list<BlockReader> frozen;

  Source(const std::filesystem::path& path, const FlatSpace& checkpoint_space)
      : space(checkpoint_space),
        folder(checkpoint::find_checkpoint(path)),
        manifest(checkpoint::read_manifest_of(folder)) {
    uint64_t states_bytes = 0;
    uint64_t frozen_bytes = 0;
    for (const Section& section : space.sections()) {
      SectionPlace place;
      uint64_t& bytes = section.trainable ? states_bytes : frozen_bytes;
      place.first_byte = bytes;
      place.value_bytes = section.trainable ? sizeof(float) : bytes_of(section.type);
      place.tile_bytes = section.trainable ? manifest.layout.tile_bytes() : kTileElements * place.value_bytes;
      bytes += section.elements / kTileElements * place.tile_bytes;
      sections.push_back(place);
    }
    checkpoint::require_same_tensors(folder, manifest, "the architecture that it names", space, states_bytes,
                                     frozen_bytes);
    if (manifest.states.bytes > 0) add_reader(states, checkpoint::kStatesName, manifest.states);
    if (manifest.frozen.bytes > 0) add_reader(frozen, checkpoint::kFrozenName, manifest.frozen);
  }

  void add_reader(std::list<BlockReader>& readers, std::string_view name, const checkpoint::DataFile& file) {
    readers.emplace_front(folder / name, file);
  }

  // A reader that stands at this byte: one that holds its block, else the one that was not used for longest.
  BlockReader& reader_at(bool of_states, uint64_t byte) {
    std::list<BlockReader>& readers = of_states ? states : frozen;
    auto found =
        std::find_if(readers.begin(), readers.end(), [&](const BlockReader& r) { return r.holds(byte); });
    if (found == readers.end() && readers.size() < kReaderCount) {
      add_reader(readers, of_states ? checkpoint::kStatesName : checkpoint::kFrozenName,
                 of_states ? manifest.states : manifest.frozen);
    } else {
      if (found == readers.end()) --found;
      readers.splice(readers.begin(), readers, found);
    }
    readers.front().seek(byte);
    return readers.front();
  }
};

CheckpointValues::CheckpointValues(const std::filesystem::path& path, const FlatSpace& space)
    : source_(std::make_unique<Source>(path, space)) {}
CheckpointValues::~CheckpointValues() = default;

void CheckpointValues::read(TensorId tensor, uint64_t first_element, std::span<float> values) {
  Source& p = *source_;
  const TensorPlace& place = p.space.place(tensor);
  TERRACE_ASSERT(first_element + values.size() <= place.elements, "values beyond the end of a tensor");
  const Section& section = p.space.sections()[place.section];
  const SectionPlace& file = p.sections[place.section];
  const DataType type = section.trainable ? DataType::fp32 : section.type;
  const std::scoped_lock lock(p.mutex);
  std::byte raw[kTileElements * sizeof(float)];
  for (uint64_t element = place.first_element + first_element; !values.empty();) {
    const uint64_t inside = element % kTileElements;
    const auto count = static_cast<size_t>(std::min<uint64_t>(values.size(), kTileElements - inside));
    const uint64_t byte =
        file.first_byte + element / kTileElements * file.tile_bytes + inside * file.value_bytes;
    p.reader_at(section.trainable, byte).read({raw, count * file.value_bytes});
    convert_to_float(best_instruction_set(), raw, type, values.data(), count);
    values = values.subspan(count);
    element += count;
  }
}

}  // namespace terrace
