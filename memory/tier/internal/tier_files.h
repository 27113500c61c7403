// The files of a tier folder: their names, their recognition, and the small file that labels a folder as part
// of a space. docs/nvme_format.md describes the bytes. Nothing here changes a file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/tier/tier_manifest.h>

namespace terrace::tier {

inline constexpr std::string_view kFolderName = "terrace-tier";
inline constexpr const char* kLockName = "lock";
inline constexpr const char* kLabelName = "space";
inline constexpr std::string_view kAsideSuffix = ".new";  // suffix of io::write_file_atomically()

inline constexpr std::string_view kLabelMagic = "TRCSPACE";
inline constexpr std::string_view kManifestMagic = "TRCEPOCH";

// Both formats end with the xxh3 of everything before.
inline constexpr size_t kChecksumBytes = 8;

// Whether the name is 1 to 64 characters of a-z, 0-9 and _.
bool is_store_name(std::string_view name);
std::string blocks_file_name(std::string_view store);

struct CommitName {
  uint64_t commit = 0;
  bool retained = false;
};
// Returns "commit-0000000000000012.manifest", or ".retained".
std::string commit_file_name(const CommitName& name);
// Accepts the former names, "epoch-0000000000000012.manifest", too.
std::optional<CommitName> parse_commit_file_name(std::string_view name);

enum class FileKind : uint8_t {
  manifest,
  aside,
  blocks,
  blocks_aside,
  label
};  // in the order in which they are removed
struct Entry {
  std::string name;
  FileKind kind{};
  uint64_t bytes = 0;
  bool regular = false;  // a regular file, not a link or a folder
  bool ours = false;     // made by Terrace, judged by its bytes
};
// Lists the entries with names of the kinds above, in no order. `folder` is for messages. Throws Error(io),
// also where one of them can be neither looked into nor said to be none.
std::vector<Entry> list_files(int folder_fd, const std::string& folder);

// A folder whose label has version 1 holds manifests by their former name alone; a program that knows no
// other name refuses a label of version 2.
inline constexpr uint32_t kLabelVersion = 2;
struct Label {
  SpaceId space;
  uint32_t path_index = 0;
  uint32_t path_count = 0;
  uint32_t version = kLabelVersion;
};
inline constexpr size_t kLabelBytes = 48;
std::array<std::byte, kLabelBytes> serialise(const Label& label);
// Throws Error(corrupt), or Error(config) for a newer format.
Label parse_label(std::span<const std::byte> bytes, const std::string& path);

// check_head() checks the whole file's checksum, then its version, for both parsers. `what` is "the label of
// a tier folder".
struct FileHead {
  std::string_view what;
  std::string_view magic;
  uint32_t version = 0;  // the newest known version; all from 1 on are known
};
// Returns the version.
uint32_t check_head(std::span<const std::byte> bytes, const FileHead& head, const std::string& path);
[[noreturn]] void corrupt(std::string_view what, const std::string& path, std::string reason);

}  // namespace terrace::tier
