// The part of TrainingState that sets the state from values that exist: arrays in memory, and parts of files.
#include <fmt/format.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/training_state.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

// The sources by TensorId, each there once.
template <typename Source>
std::vector<const Source*> by_tensor(const FlatSpace& space, std::span<const Source> sources) {
  const auto refuse = [](std::string subject, std::string_view reason) {
    throw Error(ErrorKind::misuse, {"cannot initialise", std::move(subject), std::string(reason),
                                    "name every tensor once, frozen ones too"});
  };
  std::vector<const Source*> found(space.tensor_count(), nullptr);
  for (const Source& source : sources) {
    const uint32_t tensor = index_of(source.tensor);
    if (tensor >= found.size())
      refuse(fmt::format("tensor {}", tensor), fmt::format("there are {}", found.size()));
    if (found[tensor] != nullptr) refuse(space.tensor(source.tensor).name, "it is named twice");
    found[tensor] = &source;
  }
  for (uint32_t t = 0; t < found.size(); ++t) {
    if (found[t] == nullptr) refuse(space.tensor(TensorId{t}).name, "no values are named for it");
  }
  return found;
}

constexpr std::string_view kLeaveFile = "the values are read while they are loaded: leave the file as it is";

void require_part(const FilePart& part, uint64_t bytes, uint64_t file_bytes) {
  if (part.offset <= file_bytes && bytes <= file_bytes - part.offset) return;
  throw Error(ErrorKind::corrupt, {fmt::format("cannot read {} bytes at offset {} of", bytes, part.offset),
                                   part.path.string(), fmt::format("the file has {} bytes", file_bytes),
                                   "it was cut short, or the part is another one: fetch the file again"});
}

}  // namespace

void TrainingState::load_arrays(std::span<const TensorArray> arrays) {
  const RunContext& run = blocks_.run();
  const std::vector<const TensorArray*> found = by_tensor(run.space, arrays);
  for (const TensorArray* array : found) {
    if (array->data == nullptr)
      throw Error(ErrorKind::misuse, {"cannot initialise", run.space.tensor(array->tensor).name,
                                      "its array has no address", "give it one"});
  }
  initialise([&](TensorId tensor, uint64_t first_element, std::span<float> values) {
    const TensorArray& array = *found[index_of(tensor)];
    convert_to_float(run.instruction_set, array.data + first_element * bytes_of(array.type), array.type,
                     values.data(), values.size());
  });
}

void TrainingState::load_file_parts(std::span<const FilePart> parts) {
  const RunContext& run = blocks_.run();
  const std::vector<const FilePart*> found = by_tensor(run.space, parts);
  std::map<std::filesystem::path, io::File> files;
  std::vector<const io::File*> file_of;
  for (const FilePart* part : found) {
    auto file = files.find(part->path);
    if (file == files.end())
      file = files
                 .emplace(part->path,
                          io::File::open(part->path, {.access = io::FileAccess::read, .no_follow = false}))
                 .first;
    require_part(*part, run.space.place(part->tensor).elements * bytes_of(part->type),
                 file->second.size_bytes());
    file_of.push_back(&file->second);
  }
  initialise([&](TensorId tensor, uint64_t first_element, std::span<float> values) {
    const FilePart& part = *found[index_of(tensor)];
    const uint64_t element_bytes = bytes_of(part.type);
    std::array<std::byte, kTileElements * sizeof(float)> memory;  // a run is never longer than a tile
    const std::span<std::byte> bytes = std::span(memory).first(values.size() * element_bytes);
    io::read_exactly(*file_of[index_of(tensor)], part.offset + first_element * element_bytes, bytes,
                     kLeaveFile);
    convert_to_float(run.instruction_set, bytes.data(), part.type, values.data(), values.size());
  });
}

}  // namespace terrace
