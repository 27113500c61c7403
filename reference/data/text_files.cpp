#include <terrace/reference/data/text_files.h>

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
#include <terrace/reference/data/internal/data_errors.h>
#include <terrace/reference/data/internal/json_lines.h>

namespace terrace {
namespace {

using data::cannot_read;
using data::cannot_use;

constexpr size_t kTextBeginningBytes = 8192;
constexpr const char* kGiveText = "give a text file or a folder with text files";

class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) cannot_read(path, system_reason(errno), "check that the file exists and may be read");
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  struct stat status() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) cannot_read(path_, system_reason(errno), data::kCheckFileSystem);
    return status;
  }
  // Fewer bytes than asked for only at the end of the file.
  size_t read(uint64_t offset, std::span<uint8_t> bytes) const {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count =
          ::pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) cannot_read(path_, system_reason(errno), data::kCheckFileSystem);
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

 private:
  const std::filesystem::path& path_;
  int fd_;
};

bool begins_with(std::span<const uint8_t> beginning, std::string_view magic) {
  return std::string_view(reinterpret_cast<const char*>(beginning.data()), beginning.size())
      .starts_with(magic);
}

void refuse_parquet(const std::filesystem::path& path, std::span<const uint8_t> beginning) {
  if (!begins_with(beginning, "PAR1")) return;
  cannot_use(path, "it is a file of Parquet",
             fmt::format("make JSON lines of it: python3 -c 'import pandas; pandas.read_parquet(\"{}\")"
                         ".to_json(\"texts.jsonl\", orient=\"records\", lines=True)'",
                         path.string()));
}

// How to make something of a binary file that can be trained on.
std::string advice_for_binary(const std::filesystem::path& path) {
  std::array<uint8_t, kTextBeginningBytes> buffer;
  const std::span<const uint8_t> beginning(buffer.data(), OpenFile(path).read(0, buffer));
  if (begins_with(beginning, "\x1F\x8B")) return fmt::format("unpack it first: gunzip -k {}", path.string());
  if (begins_with(beginning, "\x28\xB5\x2F\xFD"))
    return fmt::format("unpack it first: zstd -d {}", path.string());
  if (!begins_with(beginning, "\x93NUMPY")) return kGiveText;
  std::filesystem::path made = path;
  made.replace_extension(".bin");
  return fmt::format(
      "if it has tokens, make a .bin file of them: python3 -c 'import numpy; numpy.load(\"{}\")"
      ".astype(numpy.uint32).tofile(\"{}\")'",
      path.string(), made.string());
}

// Its first line may be longer than the beginning.
bool has_json_lines(const std::filesystem::path& path, const OpenFile& file,
                    std::span<const uint8_t> beginning, uint64_t size) {
  const std::string_view seen(reinterpret_cast<const char*>(beginning.data()), beginning.size());
  if (seen.find('\n') != std::string_view::npos || beginning.size() == size)
    return data::are_json_lines(path, seen, beginning.size() == size);
  std::string line(kMiB, '\0');
  line.resize(file.read(0, {reinterpret_cast<uint8_t*>(line.data()), line.size()}));
  return data::are_json_lines(path, line, line.size() == size);
}

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

TextFiles::TextFiles(const std::vector<std::filesystem::path>& paths) : paths_(paths) {
  TERRACE_ASSERT(!paths.empty(), "no path to text");
  for (const std::filesystem::path& path : paths) add_path(path);
  if (!files_.empty()) return;
  std::string reason = fmt::format("there is no text in it (left out: {} binary, {} hidden, {} empty",
                                   binary_count_, hidden_count_, empty_count_);
  if (dangling_count_ > 0) reason += fmt::format(", {} links that lead nowhere", dangling_count_);
  cannot_use(paths.front(), reason + ")", binary_count_ > 0 ? advice_for_binary(first_binary_) : kGiveText);
}

void TextFiles::add_path(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error) cannot_read(path, system_reason(error.value()), kGiveText);
  if (std::filesystem::is_directory(status)) {
    for (const std::filesystem::path& file : collect_folder(path))
      add_file(file, file.lexically_relative(path).string());
    return;
  }
  if (!std::filesystem::is_regular_file(status)) data::cannot_use_special(path, status, kGiveText);
  const size_t count_before = files_.size();
  const uint64_t binary_before = binary_count_;
  add_file(path, path.filename().string());
  if (files_.size() > count_before) return;
  if (binary_count_ > binary_before) cannot_use(path, "it is a binary file", advice_for_binary(path));
  cannot_use(path, "it is empty", kGiveText);
}

std::vector<std::filesystem::path> TextFiles::collect_folder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error);
  std::filesystem::path last = folder;
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    last = entry->path();
    // A link that leads nowhere is no error: editors leave their locks as such.
    std::error_code nowhere;
    if (is_hidden(last)) {
      ++hidden_count_;
      entry.disable_recursion_pending();
    } else if (entry->is_symlink(error) && !entry->exists(nowhere)) {
      ++dangling_count_;
    } else if (entry->is_regular_file(error)) {
      found.push_back(last);
    }
    if (error) break;
  }
  if (error)
    cannot_read(last, system_reason(error.value()), "check that the folder and all in it may be read");
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.native() < b.native(); });
  return found;
}

void TextFiles::add_file(const std::filesystem::path& path, const std::string& name) {
  const OpenFile file(path);
  const struct stat status = file.status();
  const auto size = static_cast<uint64_t>(status.st_size);
  std::array<uint8_t, kTextBeginningBytes> buffer;
  const std::span<const uint8_t> beginning(buffer.data(), file.read(0, buffer));
  if (beginning.empty()) {
    ++empty_count_;
    return;
  }
  refuse_parquet(path, beginning);
  if (!looks_like_text(beginning)) {
    if (binary_count_++ == 0) first_binary_ = path;
    return;
  }
  const bool is_json_lines = has_json_lines(path, file, beginning, size);
  if (is_json_lines) fingerprint_ = XXH3_64bits_withSeed(&is_json_lines, sizeof(is_json_lines), fingerprint_);
  fingerprint_ = XXH3_64bits_withSeed(name.data(), name.size(), fingerprint_);
  fingerprint_ = XXH3_64bits_withSeed(&size, sizeof(size), fingerprint_);
  fingerprint_ = XXH3_64bits_withSeed(beginning.data(), beginning.size(), fingerprint_);
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  files_.push_back({path, byte_count_, size,
                    int64_t{status.st_mtim.tv_sec} * kNsPerSecond + status.st_mtim.tv_nsec, is_json_lines});
  byte_count_ += size;
}

bool TextFiles::are_plain() const {
  return std::none_of(files_.begin(), files_.end(), [](const File& file) { return file.is_json_lines; });
}

std::string TextFiles::description() const {
  std::string text = fmt::format("{} {}, {}", files_.size(), files_.size() == 1 ? "file" : "files",
                                 format_bytes(byte_count_));
  std::string left_out;
  const auto add = [&left_out](uint64_t count, const char* what) {
    if (count > 0) left_out += fmt::format("{}{} {}", left_out.empty() ? "" : ", ", count, what);
  };
  add(binary_count_, "binary");
  add(hidden_count_, "hidden");
  add(dangling_count_, dangling_count_ == 1 ? "link that leads nowhere" : "links that lead nowhere");
  return left_out.empty() ? text : fmt::format("{} (left out: {})", text, left_out);
}

const TextFiles::File& TextFiles::file_at(uint64_t offset) const {
  TERRACE_ASSERT(offset < byte_count_, fmt::format("byte {} of {}", offset, byte_count_));
  const auto after =
      std::upper_bound(files_.begin(), files_.end(), offset,
                       [](uint64_t wanted, const File& candidate) { return wanted < candidate.first_byte; });
  return *(after - 1);
}

void TextFiles::read(uint64_t offset, std::span<uint8_t> bytes) const {
  TERRACE_ASSERT(offset <= byte_count_ && bytes.size() <= byte_count_ - offset,
                 fmt::format("{} bytes at {} of {}", bytes.size(), offset, byte_count_));
  if (bytes.empty()) return;
  const File* file = &file_at(offset);
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
