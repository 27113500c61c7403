#include <fmt/format.h>
#include <json/json.h>
#include <xxhash.h>

#include <charconv>
#include <memory>
#include <set>

#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/config/json_document.h>

namespace terrace {
namespace checkpoint {
namespace {

constexpr std::string_view kFormatName = "terrace-checkpoint";
constexpr size_t kChecksumDigits = 16;
constexpr uint64_t kFirstWithArchitecture = 2;  // version

// The text ends with the checksum of everything before its last comma, in exactly these bytes.
constexpr std::string_view kTailBegin = ",\n  \"manifest_checksum\": \"";
constexpr std::string_view kTailEnd = "\"\n}\n";
constexpr size_t kTailBytes = kTailBegin.size() + kChecksumDigits + kTailEnd.size();

std::string tail_of(std::string_view body) {
  return fmt::format("{}{}{}", kTailBegin, hex_text(XXH3_64bits(body.data(), body.size())), kTailEnd);
}

std::string json_of(const DataFile& file) {
  std::string checksums;
  checksums.reserve(file.block_checksums.size() * kChecksumDigits);
  for (const uint64_t checksum : file.block_checksums) checksums += hex_text(checksum);
  return fmt::format(R"({{"bytes": {}, "block_checksums": "{}"}})", file.bytes, checksums);
}

std::string json_of(const std::map<std::string, uint64_t>& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", json_quoted(name), value);
  }
  return "{" + text + "}";
}

std::string json_of(const std::map<std::string, std::string>& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", json_quoted(name), json_quoted(value));
  }
  return "{" + text + "}";
}

// Exactly sixteen lower-case digits.
bool read_hex(std::string_view text, uint64_t& value) {
  if (text.size() != kChecksumDigits || text.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return false;
  return std::from_chars(text.data(), text.data() + text.size(), value, 16).ec == std::errc();
}

// The members of one JSON object, each asked for once; a member nobody asked for is an error as well.
class Members {
 public:
  Members(const Json::Value& object, std::string name, const std::filesystem::path& path)
      : object_(object), name_(std::move(name)), path_(path) {
    if (!object.isObject()) refuse(name_.empty() ? "it is not an object" : name_ + " is not an object");
  }

  bool has(const std::string& key) const { return object_.isMember(key); }

  const Json::Value& take(const std::string& key) {
    if (!has(key)) refuse(fmt::format("{} is missing", full(key)));
    asked_.insert(key);
    return object_[key];
  }
  uint64_t whole_number(const std::string& key) {
    const Json::Value& value = take(key);
    const bool whole =
        value.type() == Json::uintValue || (value.type() == Json::intValue && value.asInt64() >= 0);
    if (!whole) refuse(fmt::format("{} is not a whole number from 0 to 2^64 - 1", full(key)));
    return value.asUInt64();
  }
  std::string text(const std::string& key) {
    const Json::Value& value = take(key);
    if (!value.isString()) refuse(fmt::format("{} is not a text", full(key)));
    return value.asString();
  }
  uint64_t hash(const std::string& key) {
    uint64_t value = 0;
    if (!read_hex(text(key), value))
      refuse(fmt::format("{} is not {} hexadecimal digits", full(key), kChecksumDigits));
    return value;
  }
  void require_nothing_else() const {
    for (const std::string& key : object_.getMemberNames()) {
      if (!asked_.contains(key)) refuse(fmt::format("{} is not known", full(key)));
    }
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(ErrorKind::corrupt, {"cannot use the manifest", path_.string(), reason,
                                     "Terrace writes no such manifest: resume from another checkpoint"});
  }

 private:
  std::string full(const std::string& key) const {
    const std::string shown = json_quoted(key);
    return name_.empty() ? shown : shown + " of " + name_;
  }

  const Json::Value& object_;
  std::string name_;
  const std::filesystem::path& path_;
  std::set<std::string> asked_;
};

DataFile read_data_file(Members& manifest, const std::string& key, const std::filesystem::path& path) {
  Members members(manifest.take(key), key, path);
  DataFile file;
  file.bytes = members.whole_number("bytes");
  const std::string checksums = members.text("block_checksums");
  const uint64_t blocks = checksums.size() / kChecksumDigits;
  if (checksums.size() % kChecksumDigits != 0 || blocks != block_count(file.bytes)) {
    members.refuse(fmt::format("{} characters of checksums do not belong to the {} bytes of {}",
                               checksums.size(), file.bytes, key));
  }
  file.block_checksums.resize(blocks);
  for (uint64_t b = 0; b < blocks; ++b) {
    if (!read_hex(std::string_view(checksums).substr(b * kChecksumDigits, kChecksumDigits),
                  file.block_checksums[b]))
      members.refuse(fmt::format("the checksum of block {} of {} is not hexadecimal", b, key));
  }
  members.require_nothing_else();
  return file;
}

// An object of names and whole numbers.
std::map<std::string, uint64_t> read_numbers(Members& manifest, const std::string& key,
                                             const std::filesystem::path& path) {
  const Json::Value& object = manifest.take(key);
  Members members(object, key, path);
  std::map<std::string, uint64_t> numbers;
  for (const std::string& name : object.getMemberNames()) numbers[name] = members.whole_number(name);
  return numbers;
}

CheckpointInfo read_info(Members& manifest, uint64_t version, const std::filesystem::path& path) {
  CheckpointInfo info;
  info.step = manifest.whole_number("step");
  info.model = manifest.text("model");
  if (version >= kFirstWithArchitecture) info.architecture = manifest.text("architecture");
  info.tensor_hash = manifest.hash("tensor_hash");
  info.seed = manifest.whole_number("seed");
  const std::string type = manifest.text("parameter_type");
  bool known = false;
  for (const DataType candidate : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    if (type != name_of(candidate)) continue;
    info.type = candidate;
    known = true;
  }
  if (!known) manifest.refuse("\"parameter_type\" is none of fp32, bf16 and fp16");
  info.position = read_numbers(manifest, "data_position", path);
  if (manifest.has("loss_scaler")) {
    info.loss_scaler = read_numbers(manifest, "loss_scaler", path);
    if (info.loss_scaler.empty()) manifest.refuse("\"loss_scaler\" is empty");
  }
  if (manifest.has("settings")) {
    const Json::Value& settings = manifest.take("settings");
    Members texts(settings, "settings", path);
    for (const std::string& key : settings.getMemberNames()) info.settings[key] = texts.text(key);
    if (info.settings.empty()) manifest.refuse("\"settings\" is empty");
  }
  return info;
}

Manifest read_manifest(const Json::Value& root, const std::filesystem::path& path) {
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
  manifest.info = read_info(members, version, path);
  manifest.states = read_data_file(members, "states", path);
  if (manifest.states.bytes % kRecordTileBytes != 0)
    members.refuse(
        fmt::format("{} bytes of states are not whole tiles of {}", manifest.states.bytes, kRecordTileBytes));
  if (members.has("frozen")) {
    manifest.frozen = read_data_file(members, "frozen", path);
    if (manifest.frozen.bytes == 0) members.refuse("\"frozen\" has no bytes");
  }
  members.require_nothing_else();
  return manifest;
}

void require_checksum(std::string_view text, const std::filesystem::path& path) {
  const std::string advice = "it was edited, or its disk is damaged: resume from another checkpoint";
  if (text.size() < kTailBytes) {
    throw Error(ErrorKind::corrupt,
                {"cannot use the manifest", path.string(),
                 fmt::format("its {} bytes are too few: it was cut off", text.size()), advice});
  }
  const std::string_view body = text.substr(0, text.size() - kTailBytes);
  const std::string_view tail = text.substr(body.size());
  const std::string expected = tail_of(body);
  if (tail == expected) return;
  std::string reason = "its last line is not that of a manifest: it was cut off";
  if (tail.starts_with(kTailBegin) && tail.ends_with(kTailEnd)) {
    reason =
        fmt::format("its checksum is {}, and it says {}", expected.substr(kTailBegin.size(), kChecksumDigits),
                    json_quoted(tail.substr(kTailBegin.size(), kChecksumDigits)));
  }
  throw Error(ErrorKind::corrupt, {"cannot use the manifest", path.string(), reason, advice});
}

}  // namespace

uint64_t block_count(uint64_t bytes) {
  return bytes / kBlockBytes +
         (bytes % kBlockBytes != 0 ? 1 : 0);  // without overflow: `bytes` may be anything
}

std::string hex_text(uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::string with_checksum(const std::string& body) {
  return body + tail_of(body);
}

std::string manifest_text(const Manifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  std::string text = "{\n";
  const auto add = [&](std::string_view key, const std::string& value) {
    text += fmt::format("{}  \"{}\": {}", text.size() > 2 ? ",\n" : "", key, value);
  };
  add("format", json_quoted(kFormatName));
  add("version", std::to_string(manifest.version));
  add("step", std::to_string(info.step));
  add("model", json_quoted(info.model));
  if (manifest.version >= kFirstWithArchitecture) add("architecture", json_quoted(info.architecture));
  add("parameter_type", json_quoted(name_of(info.type)));
  add("tensor_hash", json_quoted(hex_text(info.tensor_hash)));
  add("seed", std::to_string(info.seed));
  add("data_position", json_of(info.position));
  if (!info.loss_scaler.empty()) add("loss_scaler", json_of(info.loss_scaler));
  if (!info.settings.empty()) add("settings", json_of(info.settings));
  add("block_bytes", std::to_string(kBlockBytes));
  add("states", json_of(manifest.states));
  if (manifest.frozen.bytes > 0) add("frozen", json_of(manifest.frozen));
  return with_checksum(text);
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  require_checksum(text, path);
  Json::CharReaderBuilder builder;
  Json::CharReaderBuilder::strictMode(&builder.settings_);
  builder["stackLimit"] = 16;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value root;
  std::string problems;
  try {
    if (!reader->parse(text.data(), text.data() + text.size(), &root, &problems)) root = Json::Value();
  } catch (const Json::Exception& failure) {  // nested too deeply
    problems = failure.what();
    root = Json::Value();
  }
  if (!root.isObject()) {
    throw Error(ErrorKind::corrupt,
                {"cannot use the manifest", path.string(),
                 "it is not JSON: " + problems.substr(0, problems.find_last_not_of('\n') + 1),
                 "Terrace writes no such manifest: resume from another checkpoint"});
  }
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
  return XXH3_64bits(list.data(), list.size());
}

}  // namespace terrace
