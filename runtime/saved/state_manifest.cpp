// The manifest of a saved state as text, and back. Declared in saved_state.h.
#include <fmt/format.h>

#include <limits>
#include <set>

#include <terrace/base/error.h>
#include <terrace/base/text/json_cursor.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/saved/saved_state.h>
#include <terrace/runtime/saved/sealed_text.h>

namespace terrace::saved {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFormatVersion = 1;
constexpr uint64_t kAnyNumber = std::numeric_limits<uint64_t>::max();
constexpr JsonCursorErrors kErrors = {.kind = ErrorKind::corrupt,
                                      .what_failed = "cannot use the manifest",
                                      .place = "byte",
                                      .advice = "Terrace writes no such manifest: load another checkpoint"};

StateManifest::File read_file(JsonCursor& json) {
  StateManifest::File file;
  std::string checksums;
  json.object([&](std::string& key) {
    if (key == "name") {
      file.name = json.text();
    } else if (key == "bytes") {
      file.data.bytes = json.whole_number(kAnyNumber);
    } else if (key == "block_checksums") {
      checksums = json.text();
    } else {
      json.fail(fmt::format("{} is not known", json_quoted(key, 100)));
    }
  });
  if (!why_no_state_name(file.name).empty()) json.fail("a file has a name that no save gives");
  if (const std::string reason = read_checksums(checksums, file.data); !reason.empty()) json.fail(reason);
  return file;
}

void require_version(uint64_t version, const fs::path& path) {
  if (version <= kFormatVersion) return;
  throw Error(ErrorKind::config, {"cannot use the manifest", path.string(),
                                  fmt::format("it has version {} and this Terrace reads versions up to {}",
                                              version, kFormatVersion),
                                  "use the Terrace that saved the checkpoint, or a later one"});
}

[[noreturn]] void refuse(const fs::path& path, const std::string& reason) {
  throw Error(kErrors.kind, {kErrors.what_failed, path.string(), reason, kErrors.advice});
}

}  // namespace

std::string manifest_text(const StateManifest& manifest) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("format", kStateFormatName).member("version", kFormatVersion);
  json.member("facts", manifest.facts).member("block_bytes", kBlockBytes);
  json.list(
      "files", manifest.files,
      [&](const StateManifest::File& file) {
        json.object({{"name", file.name},
                     {"bytes", file.data.bytes},
                     {"block_checksums", checksums_text(file.data)}});
      },
      JsonLayout::lines);
  return sealed(json.text());
}

StateManifest parse_state_manifest(std::string_view text, const fs::path& path) {
  require_seal(text, path);
  const std::string name = path.string();
  JsonCursor json(text, name, kErrors);
  StateManifest manifest;
  std::string format;
  uint64_t block_bytes = 0;
  json.object([&](std::string& key) {
    if (key == "format") {
      format = json.text();
      if (format != kStateFormatName)
        refuse(path, fmt::format("its format is {}, and that of a saved state is {}",
                                 json_quoted(format, 100), kStateFormatName));
    } else if (key == "version") {
      require_version(json.whole_number(kAnyNumber), path);
    } else if (key == "facts") {
      manifest.facts = json.text();
    } else if (key == "block_bytes") {
      block_bytes = json.whole_number(kAnyNumber);
    } else if (key == "files") {
      json.list([&] { manifest.files.push_back(read_file(json)); });
    } else if (key == "manifest_checksum") {
      json.text();  // compared before the text was parsed
    } else {
      json.fail(fmt::format("{} is not known", json_quoted(key, 100)));
    }
  });
  json.end();
  if (block_bytes != kBlockBytes) refuse(path, fmt::format("\"block_bytes\" is not {}", kBlockBytes));
  std::set<std::string> names;
  for (const StateManifest::File& file : manifest.files) names.insert(file.name);
  if (names.size() != manifest.files.size()) refuse(path, "a file is there twice");
  // Twice the same member, spaces: no member is wrong, and yet nobody wrote this.
  if (manifest_text(manifest) != text) refuse(path, "it is not written the way Terrace writes them");
  return manifest;
}

}  // namespace terrace::saved
