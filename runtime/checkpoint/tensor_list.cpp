#include <terrace/runtime/checkpoint/internal/tensor_list.h>

#include <fmt/format.h>

#include <set>
#include <string_view>

#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

namespace terrace {
namespace checkpoint {
namespace {

TensorSpec read_tensor(const JsonNode& item, const std::filesystem::path& path) {
  Members members(item, "a tensor", path);
  TensorSpec tensor;
  tensor.name = members.text("name");
  tensor.type = members.type("type");
  tensor.shape = members.whole_numbers("shape");
  tensor.trainable = members.truth("trained");
  if (members.has("apart")) {
    if (!members.truth("apart")) members.refuse("\"apart\" of a tensor is false");
    tensor.home = TensorHome::caller;
  }
  if (members.has("matrix")) {
    if (!members.truth("matrix")) members.refuse("\"matrix\" of a tensor is false");
    tensor.by_matrix = true;
  }
  if (members.has("copy")) {
    if (!members.truth("copy")) members.refuse("\"copy\" of a tensor is false");
    tensor.counted_elsewhere = true;
  }
  members.require_nothing_else();
  return tensor;
}

}  // namespace

std::vector<TensorSpec> listed_tensors(const FlatSpace& space) {
  std::vector<TensorSpec> tensors;
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorSpec& tensor = space.tensor(TensorId{t});
    tensors.push_back({.name = tensor.name,
                       .shape = tensor.shape,
                       .type = tensor.type,
                       .trainable = tensor.trainable,
                       .home = tensor.home,
                       .by_matrix = tensor.by_matrix,
                       .counted_elsewhere = tensor.counted_elsewhere});
  }
  return tensors;
}

uint64_t hash_of(std::span<const TensorSpec> tensors) {
  std::string list;
  const auto append = [&](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) list += static_cast<char>(value >> (8 * byte) & 0xff);
  };
  for (const TensorSpec& tensor : tensors) {
    append(tensor.name.size());
    list += tensor.name;
    append(tensor.shape.size());
    for (const uint64_t extent : tensor.shape) append(extent);
    const std::string_view type = name_of(tensor.type);
    append(type.size());
    list += type;
    append((tensor.trainable ? (tensor.by_matrix ? 2 : 1) : 0) + (tensor.counted_elsewhere ? 4 : 0));
  }
  return checksum_of(std::as_bytes(std::span(list)));
}

void write_tensors(JsonWriter& json, std::span<const TensorSpec> tensors) {
  json.list("tensors", tensors, [&](const TensorSpec& tensor) {
    json.begin_object().member("name", tensor.name).member("type", name_of(tensor.type));
    json.list("shape", tensor.shape).member("trained", tensor.trainable);
    if (tensor.home == TensorHome::caller) json.member("apart", true);
    if (tensor.by_matrix) json.member("matrix", true);
    if (tensor.counted_elsewhere) json.member("copy", true);
    json.end();
  });
}

std::vector<TensorSpec> read_tensors(Members& members) {
  std::vector<TensorSpec> tensors;
  std::set<std::string> names;
  for (const JsonNode& item : members.list("tensors")) {
    tensors.push_back(read_tensor(item, members.path()));
    if (!names.insert(tensors.back().name).second) members.refuse("a tensor is there twice");
  }
  if (tensors.empty()) members.refuse("it lists no tensor");
  return tensors;
}

std::vector<uint64_t> read_tensor_steps(Members& members) {
  if (!members.has("tensor_steps")) return {};
  std::vector<uint64_t> steps = members.whole_numbers("tensor_steps");
  if (steps.empty()) members.refuse("\"tensor_steps\" is empty");
  return steps;
}

SpaceLayout placed(std::span<const TensorSpec> tensors, const std::filesystem::path& path) {
  try {
    return SpaceLayout({tensors.begin(), tensors.end()}, kTileElements);
  } catch (const Error& failure) {
    throw Error(ErrorKind::corrupt, {"cannot use the manifest", path.string(),
                                     fmt::format("its tensors make no training: {}", failure.parts().reason),
                                     "Terrace writes no such manifest: resume from another checkpoint"});
  }
}

std::pair<uint64_t, uint64_t> data_bytes(const SpaceLayout& tensors, const RecordLayout& layout) {
  uint64_t states = 0, frozen = 0;
  for (const Section& section : tensors.sections()) {
    if (section.trainable) states += section.elements / kTileElements * layout.tile_bytes();
    if (!section.trainable) frozen += section.elements * bytes_of(section.type);
  }
  return {states, frozen};
}

}  // namespace checkpoint

uint64_t hash_of_tensors(const FlatSpace& space) {
  return checkpoint::hash_of(checkpoint::listed_tensors(space));
}

}  // namespace terrace
