#include <fmt/format.h>

#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/checkpoint/internal/facts.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace checkpoint {
namespace {

constexpr std::string_view kFormatName = "terrace-checkpoint";
constexpr uint64_t kFirstWithArchitecture = 2;  // version
constexpr uint64_t kFirstWithLayout = 3;
constexpr uint64_t kMostMoments = 2;

void write_file(JsonWriter& json, std::string_view key, const DataFile& file) {
  json.object(key, {{"bytes", file.bytes}, {"block_checksums", saved::checksums_text(file)}});
}

DataFile read_data_file(Members& manifest, const std::string& key) {
  Members members(manifest.take(key), key, manifest.path());
  DataFile file;
  file.bytes = members.whole_number("bytes");
  const std::string reason = saved::read_checksums(members.text("block_checksums"), file);
  if (!reason.empty()) members.refuse(fmt::format("{} of {}", reason, key));
  members.require_nothing_else();
  return file;
}

RecordLayout read_layout(Members& members) {
  RecordLayout layout;
  const uint64_t moments = members.whole_number("moments");
  if (moments > kMostMoments) members.refuse(fmt::format("no optimizer has {} moments", moments));
  layout.moment_count = static_cast<uint32_t>(moments);
  const std::string type = members.text("moment_type");
  if (type != name_of(DataType::fp32) && type != name_of(DataType::bf16))
    members.refuse("\"moment_type\" is neither fp32 nor bf16");
  layout.moment_type = type == name_of(DataType::fp32) ? DataType::fp32 : DataType::bf16;
  return layout;
}

Manifest read_manifest(const JsonNode& root, const std::filesystem::path& path) {
  Members members(root, "", path);
  if (members.text("format") != kFormatName) members.refuse(fmt::format("its format is not {}", kFormatName));
  const uint64_t version = members.whole_number("version");
  if (version > kFormatVersion) {
    throw Error(ErrorKind::config, {"cannot use the manifest", path.string(),
                                    fmt::format("it has version {} and this Terrace reads versions up to {}",
                                                version, kFormatVersion),
                                    "use the Terrace that saved the checkpoint, or a later one"});
  }
  if (version == 0) members.refuse("there is no version 0");
  members.hash("manifest_checksum");  // compared before the text was parsed
  if (members.whole_number("block_bytes") != kBlockBytes)
    members.refuse(fmt::format("\"block_bytes\" of version {} is always {}", version, kBlockBytes));

  Manifest manifest;
  manifest.version = version;
  manifest.info = read_facts(members, version >= kFirstWithArchitecture);
  if (version >= kFirstWithLayout) manifest.layout = read_layout(members);
  manifest.states = read_data_file(members, "states");
  if (manifest.states.bytes % manifest.layout.tile_bytes() != 0)
    members.refuse(fmt::format("{} bytes of states are not whole tiles of {}", manifest.states.bytes,
                               manifest.layout.tile_bytes()));
  if (members.has("frozen")) {
    manifest.frozen = read_data_file(members, "frozen");
    if (manifest.frozen.bytes == 0) members.refuse("\"frozen\" has no bytes");
  }
  members.require_nothing_else();
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("format", kFormatName).member("version", manifest.version);
  write_facts(json, manifest.info, manifest.version >= kFirstWithArchitecture);
  json.member("block_bytes", kBlockBytes);
  if (manifest.version >= kFirstWithLayout) {
    json.member("moments", manifest.layout.moment_count);
    json.member("moment_type", name_of(manifest.layout.moment_type));
  }
  write_file(json, "states", manifest.states);
  if (manifest.frozen.bytes > 0) write_file(json, "frozen", manifest.frozen);
  return saved::sealed(json.text());
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  saved::require_seal(text, path);
  const JsonNode root = parse_object(text, path);
  const Manifest manifest = read_manifest(root, path);
  // Twice the same member, names that are no text, spaces: no member is wrong, and yet nobody wrote this.
  if (manifest_text(manifest) != text) {
    throw Error(ErrorKind::corrupt,
                {"cannot use the manifest", path.string(), "it is not written the way Terrace writes them",
                 "it was edited: resume from another checkpoint"});
  }
  return manifest;
}

}  // namespace checkpoint

uint64_t hash_of_tensors(const FlatSpace& space) {
  std::string list;
  const auto append = [&](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) list += static_cast<char>(value >> (8 * byte) & 0xff);
  };
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorSpec& tensor = space.tensor(TensorId{t});
    append(tensor.name.size());
    list += tensor.name;
    append(tensor.shape.size());
    for (const uint64_t extent : tensor.shape) append(extent);
    const std::string_view type = name_of(tensor.type);
    append(type.size());
    list += type;
    append(tensor.trainable ? 1 : 0);
  }
  return checksum_of(std::as_bytes(std::span(list)));
}

}  // namespace terrace
