#include <fmt/format.h>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/checkpoint/internal/facts.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace checkpoint {
namespace {

constexpr std::string_view kFormatName = "terrace-checkpoint";
constexpr std::string_view kEarlierTorchName = "terrace-torch-checkpoint";
constexpr uint64_t kFirstWithArchitecture = 2;  // version
constexpr uint64_t kFirstWithLayout = 3;
constexpr uint64_t kLastAlone = 4;  // later ones are facts of a saved state
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
  if (type != name_of(MomentType::fp32) && type != name_of(MomentType::bf16))
    members.refuse("\"moment_type\" is neither fp32 nor bf16");
  layout.moment_type = type == name_of(MomentType::fp32) ? MomentType::fp32 : MomentType::bf16;
  return layout;
}

[[noreturn]] void refuse_version(uint64_t version, uint64_t newest, const std::filesystem::path& path) {
  throw Error(ErrorKind::config,
              {"cannot use the manifest", path.string(),
               fmt::format("it has version {} and this Terrace reads versions up to {}", version, newest),
               "use the Terrace that saved the checkpoint, or a later one"});
}

void require_whole_tiles(const Members& members, const Manifest& manifest) {
  if (manifest.states.bytes % manifest.layout.tile_bytes() == 0) return;
  members.refuse(fmt::format("{} bytes of states are not whole tiles of {}", manifest.states.bytes,
                             manifest.layout.tile_bytes()));
}

// Of a version before saved states, whose manifest was one of checkpoints alone.
Manifest read_older(Members& members) {
  const uint64_t version = members.whole_number("version");
  if (version > kLastAlone) refuse_version(version, kFormatVersion, members.path());
  if (version == 0) members.refuse("there is no version 0");
  members.hash("manifest_checksum");  // compared before the text was parsed
  if (members.whole_number("block_bytes") != kBlockBytes)
    members.refuse(fmt::format("\"block_bytes\" of version {} is always {}", version, kBlockBytes));

  Manifest manifest;
  manifest.version = version;
  manifest.info = read_facts(members, version >= kFirstWithArchitecture);
  if (version >= kFirstWithLayout) manifest.layout = read_layout(members);
  manifest.states = read_data_file(members, "states");
  require_whole_tiles(members, manifest);
  if (members.has("frozen")) {
    manifest.frozen = read_data_file(members, "frozen");
    if (manifest.frozen.bytes == 0) members.refuse("\"frozen\" has no bytes");
  }
  members.require_nothing_else();
  return manifest;
}

void take_files(saved::StateManifest& state, const Members& members, Manifest& manifest) {
  bool has_states = false;
  for (saved::StateManifest::File& file : state.files) {
    if (file.name == kStatesName) {
      manifest.states = std::move(file.data);
      has_states = true;
    } else if (file.name == kFrozenName) {
      manifest.frozen = std::move(file.data);
      if (manifest.frozen.bytes == 0) members.refuse(fmt::format("{} has no bytes", kFrozenName));
    } else {
      manifest.others.push_back(std::move(file));
    }
  }
  if (!has_states) members.refuse(fmt::format("it names no {}", kStatesName));
}

// The files are as long as the tensors make them.
void require_lengths(const Members& members, const Manifest& manifest) {
  const auto [states, frozen] = data_bytes(placed(manifest.tensors, members.path()), manifest.layout);
  if (manifest.states.bytes == states && manifest.frozen.bytes == frozen) return;
  members.refuse(
      fmt::format("it has {} bytes of states and {} of frozen parameters, and its tensors make {} and {}",
                  manifest.states.bytes, manifest.frozen.bytes, states, frozen));
}

// Of a saved state: what it says of itself is JSON of its own, as a text.
Manifest read_saved_state(std::string_view text, const std::filesystem::path& path) {
  saved::StateManifest state = saved::parse_state_manifest(text, path);
  const JsonNode root = parse_object(state.facts, path);
  Members members(root, "", path);
  const std::string format = members.text("format");
  if (format == kEarlierTorchName) {
    throw Error(ErrorKind::config, {"cannot use the manifest", path.string(),
                                    "engine.save_checkpoint of an earlier Terrace wrote it",
                                    "load it in PyTorch and save it again with engine.save_checkpoint"});
  }
  if (format != kFormatName) members.refuse(fmt::format("its format is not {}", kFormatName));
  Manifest manifest;
  manifest.version = members.whole_number("version");
  if (manifest.version > kFormatVersion) refuse_version(manifest.version, kFormatVersion, path);
  if (manifest.version <= kLastAlone)
    members.refuse(fmt::format("version {} is no saved state", manifest.version));
  manifest.info = read_facts(members, true);
  manifest.layout = read_layout(members);
  manifest.info.tensor_steps = read_tensor_steps(members);
  manifest.tensors = read_tensors(members);
  members.require_nothing_else();
  if (manifest.info.tensor_hash != hash_of(manifest.tensors))
    members.refuse("\"tensor_hash\" is not that of its tensors");
  if (!manifest.info.tensor_steps.empty() && manifest.info.tensor_steps.size() != manifest.tensors.size())
    members.refuse("\"tensor_steps\" has not one number for each tensor");
  take_files(state, members, manifest);
  require_lengths(members, manifest);
  return manifest;
}

void write_layout(JsonWriter& json, const RecordLayout& layout) {
  json.member("moments", layout.moment_count).member("moment_type", name_of(layout.moment_type));
}

std::string older_text(const Manifest& manifest) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("format", kFormatName).member("version", manifest.version);
  write_facts(json, manifest.info, manifest.version >= kFirstWithArchitecture);
  json.member("block_bytes", kBlockBytes);
  if (manifest.version >= kFirstWithLayout) write_layout(json, manifest.layout);
  write_file(json, "states", manifest.states);
  if (manifest.frozen.bytes > 0) write_file(json, "frozen", manifest.frozen);
  return saved::sealed(json.text());
}

}  // namespace

std::string facts_text(const Manifest& manifest) {
  JsonWriter json;
  json.begin_object().member("format", kFormatName).member("version", manifest.version);
  write_facts(json, manifest.info, true);
  write_layout(json, manifest.layout);
  if (!manifest.info.tensor_steps.empty()) json.list("tensor_steps", manifest.info.tensor_steps);
  write_tensors(json, manifest.tensors);
  return json.end().take();
}

std::vector<saved::StateManifest::File> Manifest::files() const {
  std::vector<saved::StateManifest::File> all = {{kStatesName, states}};
  if (frozen.bytes > 0) all.push_back({kFrozenName, frozen});
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::string manifest_text(const Manifest& manifest) {
  if (manifest.version <= kLastAlone) return older_text(manifest);
  return saved::manifest_text({facts_text(manifest), manifest.files()});
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  saved::require_seal(text, path);
  const JsonNode root = parse_object(text, path);
  Members members(root, "", path);
  const std::string format = members.text("format");
  Manifest manifest;
  if (format == saved::kStateFormatName) {
    manifest = read_saved_state(text, path);
  } else if (format == kFormatName) {
    manifest = read_older(members);
  } else {
    members.refuse(fmt::format("its format is not {}", kFormatName));
  }
  // Twice the same member, names that are no text, spaces: no member is wrong, and yet nobody wrote this.
  if (manifest_text(manifest) != text) {
    throw Error(ErrorKind::corrupt,
                {"cannot use the manifest", path.string(), "it is not written the way Terrace writes them",
                 "it was edited: resume from another checkpoint"});
  }
  return manifest;
}

}  // namespace checkpoint
}  // namespace terrace
