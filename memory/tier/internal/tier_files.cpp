#include <terrace/memory/tier/internal/tier_files.h>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/text/digits.h>
#include <terrace/memory/tier/internal/bytes.h>
#include <terrace/memory/tier/internal/descriptor.h>
#include <terrace/memory/tier/tier_folder.h>

namespace terrace::tier {
namespace {

constexpr std::string_view kBlocksSuffix = ".tier";
constexpr std::string_view kCommitPrefix = "commit-";
constexpr std::string_view kFormerPrefix = "epoch-";  // the name that an earlier Terrace gives them
constexpr std::string_view kPassingSuffix = ".manifest";
constexpr std::string_view kRetainedSuffix = ".retained";
constexpr size_t kCommitDigits = 16;

bool is_blocks_name(std::string_view name) {
  return name.ends_with(kBlocksSuffix) && is_store_name(name.substr(0, name.size() - kBlocksSuffix.size()));
}

std::optional<FileKind> kind_of(std::string_view name) {
  if (name == kLabelName) return FileKind::label;
  if (parse_commit_file_name(name)) return FileKind::manifest;
  if (is_blocks_name(name)) return FileKind::blocks;
  if (!name.ends_with(kAsideSuffix)) return std::nullopt;
  const std::string_view target = name.substr(0, name.size() - kAsideSuffix.size());
  if (target == kLabelName || parse_commit_file_name(target)) return FileKind::aside;
  return is_blocks_name(target) ? std::optional(FileKind::blocks_aside) : std::nullopt;
}

// What cannot be opened or read may well be a commit, so it is neither passed over nor judged.
[[noreturn]] void cannot_look(const std::string& path, int error) {
  throw Error(ErrorKind::io, {"cannot look into the file", path, system_reason(error),
                              "see that you may read it; where its drive has lost it, remove it by hand"});
}

// Reads less only at the end of the file.
size_t read_at(int fd, uint64_t offset, std::span<std::byte> bytes, const std::string& path) {
  ssize_t size;
  do {
    size = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  } while (size < 0 && errno == EINTR);
  if (size < 0) cannot_look(path, errno);
  return static_cast<size_t>(size);
}

// The mark lies at a multiple of its size. A power cut may leave the first sectors of it, as the end of a
// file.
bool ends_in_torn_mark(int fd, uint64_t bytes, const std::string& path) {
  constexpr uint64_t kLeast = 512;  // the text of the mark lies in its first sector
  std::array<std::byte, TierFolder::kMarkBytes> torn;
  const uint64_t size = bytes % torn.size();
  return size >= kLeast && read_at(fd, bytes - size, std::span(torn).first(size), path) == size &&
         std::ranges::equal(std::span(torn).first(size), TierFolder::mark().first(size));
}

// A tier file has the mark as its last page. A file aside may have a part of it there, or nothing but zeros
// there and at its beginning.
bool is_tier_file(int fd, bool aside, uint64_t bytes, const std::string& path) {
  if (bytes < TierFolder::kMarkBytes) return false;
  std::array<std::byte, TierFolder::kMarkBytes> page;
  const auto has = [&](uint64_t offset, auto holds) {
    return read_at(fd, offset, page, path) == page.size() && holds();
  };
  const auto is_mark = [&] { return std::ranges::equal(page, TierFolder::mark()); };
  const auto is_zeros = [&] {
    return std::ranges::all_of(page, [](std::byte b) { return b == std::byte{0}; });
  };
  const uint64_t end = bytes - page.size();
  if (has(end, is_mark)) return true;
  return aside && ((has(end, is_zeros) && has(0, is_zeros)) || ends_in_torn_mark(fd, bytes, path));
}

// An empty file is nobody's loss: a job leaves it that dies between making and marking it. A file aside may
// also consist of the zeros that a power cut made of it.
bool is_ours(int fd, FileKind kind, uint64_t bytes, const std::string& path) {
  if (bytes == 0) return true;
  if (kind == FileKind::blocks || kind == FileKind::blocks_aside)
    return is_tier_file(fd, kind == FileKind::blocks_aside, bytes, path);
  std::array<char, kManifestMagic.size()> begin{};
  const size_t size = read_at(fd, 0, std::as_writable_bytes(std::span(begin)), path);
  if (size == 0) return false;
  const std::string_view found(begin.data(), size);
  if (kind == FileKind::label) return found == kLabelMagic;
  if (kind == FileKind::manifest) return found == kManifestMagic;
  return kLabelMagic.starts_with(found) || kManifestMagic.starts_with(found) ||
         std::ranges::all_of(found, [](char c) { return c == 0; });
}

// False: it has gone meanwhile.
bool examine(int folder_fd, const std::string& folder, Entry& entry) {
  const std::string path = folder + "/" + entry.name;
  const Descriptor file(
      openat(folder_fd, entry.name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ELOOP || errno == ENXIO) return true;  // a link or a socket: not a regular file
    if (!is_absence(errno)) cannot_look(path, errno);
    return false;
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0) cannot_look(path, errno);
  if (!S_ISREG(status.st_mode)) return true;
  entry.bytes = static_cast<uint64_t>(status.st_size);
  entry.regular = true;
  entry.ours = is_ours(file.get(), entry.kind, entry.bytes, path);
  return true;
}

}  // namespace

bool is_store_name(std::string_view name) {
  constexpr size_t kLongest = 64;
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::string blocks_file_name(std::string_view store) {
  return fmt::format("{}{}", store, kBlocksSuffix);
}

std::string commit_file_name(const CommitName& name) {
  return fmt::format("{}{:016}{}", kCommitPrefix, name.commit,
                     name.retained ? kRetainedSuffix : kPassingSuffix);
}

std::optional<CommitName> parse_commit_file_name(std::string_view name) {
  const bool is_former = name.starts_with(kFormerPrefix);
  if (!is_former && !name.starts_with(kCommitPrefix)) return std::nullopt;
  name.remove_prefix(is_former ? kFormerPrefix.size() : kCommitPrefix.size());
  if (name.size() < kCommitDigits) return std::nullopt;
  const std::string_view suffix = name.substr(kCommitDigits);
  if (suffix != kPassingSuffix && suffix != kRetainedSuffix) return std::nullopt;
  const uint64_t commit = number_of_digits(name.substr(0, kCommitDigits)).value_or(0);
  if (commit == 0) return std::nullopt;
  return CommitName{.commit = commit, .retained = suffix == kRetainedSuffix};
}

std::vector<Entry> list_files(int folder_fd, const std::string& folder) {
  const auto fail = [&](int error) {
    throw Error(ErrorKind::io,
                {"cannot list the folder", folder, system_reason(error), "see that you may read it"});
  };
  const int list_fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list_fd < 0) fail(errno);
  std::unique_ptr<DIR, int (*)(DIR*)> list(fdopendir(list_fd), closedir);
  if (list == nullptr) {
    const int error = errno;
    close(list_fd);
    fail(error);
  }
  std::vector<Entry> named;
  while (true) {
    errno = 0;
    const dirent* const found = readdir(list.get());
    if (found == nullptr) break;
    const std::optional<FileKind> kind = kind_of(found->d_name);
    if (kind) named.push_back({.name = found->d_name, .kind = *kind});
  }
  if (errno != 0) fail(errno);
  list.reset();  // so that one descriptor to spare is enough
  std::vector<Entry> entries;
  for (Entry& entry : named) {
    if (examine(folder_fd, folder, entry)) entries.push_back(std::move(entry));
  }
  return entries;
}

void corrupt(std::string_view what, const std::string& path, std::string reason) {
  throw Error(ErrorKind::corrupt, {fmt::format("cannot use {}", what), path, std::move(reason),
                                   "go on from a checkpoint that was saved elsewhere; " +
                                       Option::discard_commits + " removes what is here"});
}

// The checksum is compared first, because a flipped bit in the version must not look like a newer program.
uint32_t check_head(std::span<const std::byte> bytes, const FileHead& head, const std::string& path) {
  const size_t least = head.magic.size() + sizeof(uint32_t) + kChecksumBytes;
  if (bytes.size() < least)
    corrupt(head.what, path, fmt::format("it has {} bytes, fewer than any", bytes.size()));
  if (std::memcmp(bytes.data(), head.magic.data(), head.magic.size()) != 0)
    corrupt(head.what, path, fmt::format("it does not begin with {}", head.magic));
  ByteReader end(bytes.last(kChecksumBytes));
  const auto expected = end.number<uint64_t>();
  const uint64_t actual = checksum_of(bytes.first(bytes.size() - kChecksumBytes));
  if (expected != actual) {
    corrupt(head.what, path,
            fmt::format("its checksum is {:#018x} and its bytes have {:#018x}", expected, actual));
  }
  ByteReader version(bytes.subspan(head.magic.size(), sizeof(uint32_t)));
  const auto found = version.number<uint32_t>();
  if (found >= 1 && found <= head.version) return found;
  throw Error(ErrorKind::config,
              {fmt::format("cannot use {}", head.what), path,
               fmt::format("it has format version {}, this Terrace knows {}", found, head.version),
               "use the Terrace that wrote it, or remove the folder by hand"});
}

std::array<std::byte, kLabelBytes> serialise(const Label& label) {
  ByteWriter writer;
  writer.text(kLabelMagic);
  writer.number(label.version);
  writer.number(label.path_index);
  writer.number(label.path_count);
  writer.number(uint32_t{0});
  writer.bytes(label.space.bytes);
  writer.number(checksum_of(writer.written()));
  TERRACE_ASSERT(writer.written().size() == kLabelBytes, "a label has one size");
  std::array<std::byte, kLabelBytes> bytes;
  std::ranges::copy(writer.written(), bytes.begin());
  return bytes;
}

Label parse_label(std::span<const std::byte> bytes, const std::string& path) {
  constexpr FileHead kHead{"the label of a tier folder", kLabelMagic, kLabelVersion};
  Label label;
  label.version = check_head(bytes, kHead, path);
  if (bytes.size() != kLabelBytes) corrupt(kHead.what, path, fmt::format("it has {} bytes", bytes.size()));
  ByteReader reader(bytes.subspan(kLabelMagic.size() + sizeof(uint32_t)));
  label.path_index = reader.number<uint32_t>();
  label.path_count = reader.number<uint32_t>();
  const auto unused = reader.number<uint32_t>();
  std::ranges::copy(reader.bytes(label.space.bytes.size()), label.space.bytes.begin());
  if (unused != 0 || label.path_index >= label.path_count)
    corrupt(kHead.what, path, fmt::format("it is path {} of {}", label.path_index, label.path_count));
  return label;
}

}  // namespace terrace::tier
