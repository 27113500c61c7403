#include <terrace/runtime/data/text_files.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr size_t kBeginningBytes = 8192;
constexpr std::string_view kAdvice = "give a text file or a folder with text files";

[[noreturn]] void cannot_read(const std::filesystem::path& path, const std::string& reason,
                              std::string advice) {
  throw Error(ErrorKind::io, {"cannot read the training data", path.string(), reason, std::move(advice)});
}

[[noreturn]] void cannot_use(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorKind::config, {"cannot train on", path.string(), reason, std::string(kAdvice)});
}

class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) cannot_read(path, system_reason(errno), "check that the file exists and may be read");
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  uint64_t byte_count() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) cannot_read(path_, system_reason(errno), "check the file system");
    return static_cast<uint64_t>(status.st_size);
  }
  // Fewer bytes than asked for only at the end of the file.
  size_t read(uint64_t offset, std::span<uint8_t> bytes) const {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count =
          ::pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) cannot_read(path_, system_reason(errno), "check the file system");
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

 private:
  const std::filesystem::path& path_;
  int fd_;
};

bool is_hidden(const std::filesystem::path& path) {
  return path.filename().native().starts_with('.');
}

}  // namespace

bool looks_like_text(std::span<const uint8_t> beginning) {
  constexpr size_t kTextPerControl = 100;
  size_t control_count = 0;
  for (const uint8_t byte : beginning) {
    if (byte == 0) return false;
    const bool layout = (byte >= '\b' && byte <= '\r') || byte == 0x1B;  // white space, backspace, escape
    if ((byte < 0x20 && !layout) || byte == 0x7F) ++control_count;
  }
  return control_count * kTextPerControl <= beginning.size();
}

TextFiles::TextFiles(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error) cannot_read(path, system_reason(error.value()), std::string(kAdvice));
  is_folder_ = std::filesystem::is_directory(status);
  std::vector<std::filesystem::path> paths;
  if (is_folder_) {
    collect_folder(paths);
  } else if (std::filesystem::is_regular_file(status)) {
    paths.push_back(path);
  } else {
    cannot_use(path, "it is neither a regular file nor a folder");
  }
  for (const std::filesystem::path& file : paths) add(file);
  if (!files_.empty()) return;
  if (!is_folder_) cannot_use(path, binary_count_ > 0 ? "it is a binary file" : "it is empty");
  cannot_use(path, fmt::format("there is no text in it (left out: {} binary, {} hidden, {} empty)",
                               binary_count_, hidden_count_, paths.size() - binary_count_));
}

void TextFiles::collect_folder(std::vector<std::filesystem::path>& paths) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(path_, error);
  std::filesystem::path last = path_;
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    last = entry->path();
    if (is_hidden(last)) {
      ++hidden_count_;
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(error)) {
      paths.push_back(last);
    } else if (entry->is_symlink(error) && !entry->exists(error)) {
      cannot_read(last, "the link leads nowhere", "remove the link or restore its target");
    }
    if (error) break;
  }
  if (error)
    cannot_read(last, system_reason(error.value()), "check that the folder and all in it may be read");
  std::sort(paths.begin(), paths.end(), [](const auto& a, const auto& b) { return a.native() < b.native(); });
}

void TextFiles::add(const std::filesystem::path& path) {
  const OpenFile file(path);
  const uint64_t size = file.byte_count();
  std::array<uint8_t, kBeginningBytes> buffer;
  const std::span<const uint8_t> beginning(buffer.data(), file.read(0, buffer));
  if (beginning.empty()) return;
  if (!looks_like_text(beginning)) {
    ++binary_count_;
    return;
  }
  const std::string name = is_folder_ ? path.lexically_relative(path_).string() : path.filename().string();
  fingerprint_ = XXH3_64bits_withSeed(name.data(), name.size(), fingerprint_);
  fingerprint_ = XXH3_64bits_withSeed(&size, sizeof(size), fingerprint_);
  fingerprint_ = XXH3_64bits_withSeed(beginning.data(), beginning.size(), fingerprint_);
  files_.push_back({path, byte_count_, size});
  byte_count_ += size;
}

std::string TextFiles::description() const {
  std::string text = fmt::format("{} {}, {}", files_.size(), files_.size() == 1 ? "file" : "files",
                                 format_bytes(byte_count_));
  if (binary_count_ + hidden_count_ > 0)
    text += fmt::format(" (left out: {} binary, {} hidden)", binary_count_, hidden_count_);
  return text;
}

void TextFiles::read(uint64_t offset, std::span<uint8_t> bytes) const {
  TERRACE_ASSERT(offset <= byte_count_ && bytes.size() <= byte_count_ - offset,
                 fmt::format("{} bytes at {} of {}", bytes.size(), offset, byte_count_));
  auto file =
      std::upper_bound(files_.begin(), files_.end(), offset,
                       [](uint64_t wanted, const File& candidate) { return wanted < candidate.first_byte; }) -
      1;
  for (; !bytes.empty(); ++file) {
    const uint64_t inside = offset - file->first_byte;
    const size_t count = static_cast<size_t>(std::min<uint64_t>(bytes.size(), file->byte_count - inside));
    if (OpenFile(file->path).read(inside, bytes.first(count)) != count) {
      cannot_read(file->path,
                  fmt::format("it had {} bytes when the run began, and now ends before", file->byte_count),
                  "leave the training data as they are while a run uses them");
    }
    bytes = bytes.subspan(count);
    offset += count;
  }
}

}  // namespace terrace
