#include <terrace/runtime/checkpoint/checkpoint_values.h>

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>
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
  uint64_t tile_bytes = 0;  // from one tile to the next
};

}  // namespace

struct CheckpointValues::Source {
  std::filesystem::path folder;
  Manifest manifest;
  SpaceLayout tensors;                 // of the checkpoint
  std::vector<TensorSpec> asked = {};  // for which values are asked
  std::optional<checkpoint::TensorMap> map =
      {};  // from those of the checkpoint to these; absent: they are the same
  std::vector<SectionPlace> sections = {};
  std::mutex mutex = {};
  // The reader used last comes first; each holds one block.
  std::list<BlockReader> states = {};
  std::list<BlockReader> frozen = {};

  void open() {
    uint64_t states_bytes = 0;
    uint64_t frozen_bytes = 0;
    for (const Section& section : tensors.sections()) {
      SectionPlace place;
      uint64_t& bytes = section.trainable ? states_bytes : frozen_bytes;
      place.first_byte = bytes;
      place.tile_bytes =
          section.trainable ? manifest.layout.tile_bytes() : kTileElements * bytes_of(section.type);
      bytes += section.elements / kTileElements * place.tile_bytes;
      sections.push_back(place);
    }
    if (manifest.states.bytes > 0) add_reader(states, checkpoint::kStatesName, manifest.states);
    if (manifest.frozen.bytes > 0) add_reader(frozen, checkpoint::kFrozenName, manifest.frozen);
  }

  // Where a value of an element of a tile begins in it, and its type.
  std::pair<uint64_t, DataType> place_in_tile(const Section& section, ValueKind what) const {
    if (!section.trainable) return {0, section.type};
    const RecordLayout& layout = manifest.layout;
    if (what == ValueKind::first_moment) return {layout.moment_offset(0), number_type_of(layout.moment_type)};
    if (what == ValueKind::second_moment)
      return {layout.moment_offset(1), number_type_of(layout.moment_type)};
    return {0, DataType::fp32};
  }

  void require(TensorId tensor, ValueKind what, uint64_t first_element, uint64_t count) const {
    const auto refuse = [&](const std::string& name, const std::string& reason) {
      throw Error(ErrorKind::misuse,
                  {"cannot read values of a checkpoint", name, reason, "read what it has"});
    };
    if (index_of(tensor) >= tensors.tensor_count())
      refuse(folder.string(), fmt::format("it has {} tensors", tensors.tensor_count()));
    const TensorSpec& spec = tensors.tensor(tensor);
    const uint64_t elements = tensors.place(tensor).elements;
    if (first_element > elements || count > elements - first_element)
      refuse(spec.name, fmt::format("it has {} elements", elements));
    const uint32_t moments = spec.trainable ? manifest.layout.moment_count : 0;
    const bool has = what == ValueKind::parameter      ? !spec.trainable
                     : what == ValueKind::master       ? spec.trainable
                     : what == ValueKind::first_moment ? moments > 0
                                                       : moments > 1;
    if (!has) refuse(spec.name, fmt::format("it has no {}", name_of(what)));
  }

  void read(TensorId tensor, ValueKind what, uint64_t first_element, std::span<float> values);

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

CheckpointValues::CheckpointValues(const std::filesystem::path& path, const FlatSpace& space) {
  const std::filesystem::path folder = checkpoint::find_checkpoint(path);
  Manifest manifest = checkpoint::read_manifest_of(folder);
  std::vector<TensorSpec> asked = checkpoint::listed_tensors(space);
  // Two programs may have the same tensors and cut, order and place them in other ways.
  std::optional<checkpoint::TensorMap> map;
  if (!manifest.tensors.empty()) map.emplace(manifest.tensors, asked);
  if (!map || !map->difference().empty())
    require_tensors(folder, manifest.info, "the architecture that it names", space);
  SpaceLayout layout = checkpoint::placed(map ? manifest.tensors : asked, folder / checkpoint::kManifestName);
  const auto [states_bytes, frozen_bytes] = checkpoint::data_bytes(layout, manifest.layout);
  checkpoint::require_lengths(folder, manifest, states_bytes, frozen_bytes);
  source_.reset(new Source{folder, std::move(manifest), std::move(layout), std::move(asked), std::move(map)});
  source_->open();
}

CheckpointValues::CheckpointValues(const std::filesystem::path& path) {
  const std::filesystem::path folder = checkpoint::find_checkpoint(path);
  Manifest manifest = checkpoint::read_manifest_of(folder);
  if (manifest.tensors.empty()) {
    throw Error(ErrorKind::config,
                {"cannot read values of a checkpoint", folder.string(),
                 fmt::format("its format has version {}, which lists no tensors", manifest.version),
                 "go on from it with `terrace train`, which saves in the format of today"});
  }
  SpaceLayout layout = checkpoint::placed(manifest.tensors, folder / checkpoint::kManifestName);
  std::vector<TensorSpec> asked = manifest.tensors;
  source_.reset(new Source{folder, std::move(manifest), std::move(layout), std::move(asked)});
  source_->open();
}

CheckpointValues::~CheckpointValues() = default;

std::string CheckpointValues::facts() const {
  return checkpoint::facts_text(source_->manifest);
}

void CheckpointValues::read(TensorId tensor, uint64_t first_element, std::span<float> values) {
  const bool is_trained = source_->asked[index_of(tensor)].trainable;
  read(tensor, is_trained ? ValueKind::master : ValueKind::parameter, first_element, values);
}

void CheckpointValues::read(TensorId tensor, ValueKind what, uint64_t first_element,
                            std::span<float> values) {
  Source& p = *source_;
  if (!p.map) return p.read(tensor, what, first_element, values);
  if (p.map->is_padding(tensor)) return static_cast<void>(std::ranges::fill(values, 0.0f));
  p.map->for_each_piece(tensor, first_element, values.size(),
                        [&](TensorId from, uint64_t first, uint64_t at, uint64_t count) {
                          p.read(from, what, first, values.subspan(at, count));
                        });
}

void CheckpointValues::Source::read(TensorId tensor, ValueKind what, uint64_t first_element,
                                    std::span<float> values) {
  require(tensor, what, first_element, values.size());
  const TensorPlace& place = tensors.place(tensor);
  const Section& section = tensors.sections()[place.section];
  const SectionPlace& file = sections[place.section];
  const auto [offset, type] = place_in_tile(section, what);
  const uint64_t value_bytes = bytes_of(type);
  const std::scoped_lock lock(mutex);
  std::byte raw[kTileElements * sizeof(float)];
  for (uint64_t element = place.first_element + first_element; !values.empty();) {
    const uint64_t inside = element % kTileElements;
    const auto count = static_cast<size_t>(std::min<uint64_t>(values.size(), kTileElements - inside));
    const uint64_t byte =
        file.first_byte + element / kTileElements * file.tile_bytes + offset + inside * value_bytes;
    reader_at(section.trainable, byte).read({raw, count * value_bytes});
    convert_to_float(best_instruction_set(), raw, type, values.data(), count);
    values = values.subspan(count);
    element += count;
  }
}

}  // namespace terrace
